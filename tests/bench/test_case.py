"""Cases: mistakes are found before anything runs; steps become rows."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from thinwire import graphs
from thinwire.bench import fullgraph, harness, training
from thinwire.bench.case import Case, load_case
from thinwire.bench.result import CaseResult
from thinwire.cli import tables
from thinwire.codecs import parse_codec
from thinwire.prediction import check as predict

GOOD = 'workload = "exchange"\nmethods = ["float32", "uniform:1"]\nhosts = 2\n'
CASES = sorted((Path(__file__).parent.parent.parent / "benchmarks" / "cases").glob("*.toml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_projects_own_cases_are_sound(path: Path) -> None:
    case = load_case(path)
    (predict.check if case.workload == predict.WORKLOAD else harness.check)(case)


def test_defaults(tmp_path: Path) -> None:
    case = load_case(written(tmp_path, GOOD))
    assert (case.name, case.rate, case.repeats, case.ranks_per_host) == ("mine", "1gbit", 5, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts = ", "is not TOML"),
        (GOOD + "colour = 1\n", "unknown key 'colour'; known are"),
        (GOOD.replace("hosts = 2", ""), "it has no 'hosts'"),
        (GOOD.replace("hosts = 2", "hosts = 400"), "hosts is 400; give a whole number <= 250"),
        (GOOD + "rate = 100\n", "rate is 100; give a string"),
        (GOOD + 'rates = "1gbit"\n', "rates is '1gbit'; give a list"),
        (GOOD.replace('["float32", "uniform:1"]', "[1, 2]"), r"methods\[0\] is 1; give a string"),
        (GOOD + "repeats = true\n", "repeats is True; give a whole number"),
        (GOOD + "seed = -1\n", "seed is -1"),
        (GOOD + "settings = 3\n", "give a table"),
        (GOOD.replace("hosts = 2", "hosts = 0"), "hosts is 0; give a whole number >= 1"),
        (GOOD + 'rate = "fast"\n', "for example 100mbit"),
        (GOOD + 'rates = ["1gbit"]\n', "1 rates for 2 hosts"),
        (GOOD.replace('"uniform:1"', '"float32"'), "each once"),
        (GOOD + "repeats = 0\n", "repeats is 0"),
    ],
)
def test_mistakes_are_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        load_case(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace('"exchange"', '"juggle"'), "workload 'juggle' is not known; known are exchange"),
        (GOOD.replace('"uniform:1"', '"uniform:3"'), "codec 'uniform:3': Uniform"),
        (GOOD + "[settings]\nheight = 3\n", "settings.height is not known"),
        (GOOD + '[settings]\nrows = "many"\n', "settings.rows is 'many'; give a whole number"),
        (GOOD + "[settings]\nrows = -4\n", "settings.rows is -4"),
    ],
)
def test_a_workload_knows_its_methods(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        harness.check(load_case(written(tmp_path, text)))


GRADIENTS = 'workload = "gradients"\nmethods = ["none", "cupcake", "equal:4", "auto", "local"]\nhosts = 2\n'
CODECS = 'workload = "convergence"\nmethods = ["none", "sign --no-feedback", "dgc:0.01"]\nhosts = 2\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GRADIENTS.replace("cupcake", "muffin"), "method 'muffin' is not known; give none"),
        (GRADIENTS + '[settings]\ntask = "vgg"\n', "task is 'vgg'; give one of resnet, gpt"),
        (GRADIENTS + "[settings]\nturn = 1.5\n", "turn = 1.5; known are task"),
        (CODECS.replace("sign", "wavelet"), "wavelet"),
        (CODECS.replace("--no-feedback", "--quick"), "give a codec, with --no-feedback or without"),
    ],
)
def test_gradients_know_theirs(text: str, said: str, tmp_path: Path) -> None:
    harness.check(load_case(written(tmp_path, GRADIENTS)))
    harness.check(load_case(written(tmp_path, CODECS)))
    with pytest.raises(ValueError, match=said):
        harness.check(load_case(written(tmp_path, text)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no.toml does not exist; name a case file"):
        load_case(tmp_path / "no.toml")


def test_steps_become_rows() -> None:
    case = Case("c", "exchange", ("a", "b", "never"), hosts=2)

    def step(method: str, repeat: int, seconds: float) -> dict[str, object]:
        return {"method": method, "repeat": repeat, "seconds": seconds, "exposed_s": seconds / 2, "bytes": 10}

    steps = [step("a", -1, 99.0), step("a", 0, 4.0), step("b", 0, 1.0), step("a", 1, 6.0), step("b", 1, 3.0)]
    rows = harness.summarise(case, steps)
    assert [(row.method, row.seconds_median, row.ratio, row.repeats) for row in rows] == [
        ("a", 5.0, 1.0, 2),
        ("b", 2.0, 2.5, 2),
    ]
    assert (rows[1].seconds_low, rows[1].seconds_high, rows[1].exposed_share) == (1.0, 3.0, 0.5)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("float32", "Identity()"),
        ("uniform:4", "Uniform(4)"),
        ("topk:0.01", "TopK(0.01)"),
        ("qsgd:8", "QSGD(8, bucket=512)"),
    ],
)
def test_codecs_by_name(spec: str, shown: str) -> None:
    assert str(parse_codec(spec)) == shown


@pytest.mark.parametrize("spec", ["", "zip", "uniform", "uniform:x", "topk", "topk:2", "float32:1"])
def test_unknown_codecs_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=f"codec '{spec}'"):
        parse_codec(spec)


def test_whole_runs_are_compared_with_exact_of_the_same_model() -> None:
    names = ("exact --model sage", "sylvie --model sage", "exact --model gcn", "sylvie --model gcn")
    case = Case("c", "training", names, hosts=2)

    def run(method: str, repeat: int, score: float, curve: list[list[float | None]]) -> dict[str, object]:
        line = {"method": method, "repeat": repeat, "seconds": 9.0, "exposed_s": 1.0, "bytes": 10, "loss": 1 - score}
        return line | {"test_score": score, "best_test_score": score + 0.1, "val_score": curve[-1][1], "curve": curve}

    steps = [
        run(names[0], 0, 0.5, [[1.0, None], [2.0, 0.6]]),
        run(names[1], 0, 0.4, [[1.0, 0.5], [1.5, 0.7]]),
        run(names[2], 0, 0.9, [[1.0, 0.8], [2.0, 0.9]]),
        run(names[3], 0, 0.8, [[1.0, 0.7], [2.0, 0.8]]),
    ]
    exact, sylvie, gcn, never = (row.more or {} for row in harness.summarise(case, steps))
    assert (exact["to_score_s"], exact["points_to_exact"]) == (2.0, 0.0)
    assert sylvie["to_score_s"] == 1.5
    assert sylvie["loss"] == pytest.approx(0.6)
    assert sylvie["points_to_exact"] == pytest.approx(-10)
    assert sylvie["best_score"] == pytest.approx(0.5)
    assert sylvie["best_points_to_exact"] == pytest.approx(-10)
    assert gcn["to_score_s"] == 2.0
    assert (never["to_score_s"], never["reached"]) == (None, 0)


def test_without_test_or_validation_nodes_there_is_no_score() -> None:
    case = Case("c", "training", ("exact", "sylvie"), hosts=2)
    line: dict[str, object] = {"seconds": 9.0, "exposed_s": 1.0, "bytes": 10, "repeat": 0, "loss": 1.0}
    line |= {"curve": [[1.0, None]], "val_score": None}
    steps = [{**line, "method": name, "test_score": None, "best_test_score": None} for name in case.methods]
    rows = harness.summarise(case, steps)
    assert [(row.more or {})["score"] for row in rows] == [None, None]
    shown = io.StringIO()
    Console(width=120, file=shown).print(tables.methods(CaseResult(case, rows, None)))
    assert "%" not in shown.getvalue()
    assert training._at_best([{"val_score": None, "test_score": 0.5}]) is None
    assert training._at_best([{"val_score": 0.5, "test_score": None}]) is None


def test_the_score_reported_is_that_of_the_best_validation() -> None:
    rows: list[dict[str, float | None]] = [
        {"val_score": None, "test_score": None},
        {"val_score": 0.5, "test_score": 0.4},
        {"val_score": 0.7, "test_score": 0.6},
        {"val_score": 0.7, "test_score": 0.9},
        {"val_score": 0.6, "test_score": 0.8},
    ]
    assert training._at_best(rows) == 0.6


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("magic", "there is no method 'magic'"),
        ("sylvie --colour 3", "there is no --colour; give some of"),
        ("sylvie --bits one", "--bits one; give one of 1, 2, 4, 8"),
        ("sylvie --bits", "--bits has no value"),
    ],
)
def test_methods_of_full_graph_cases_are_options_of_train(method: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        harness.check(Case("c", "fullgraph", (method,), hosts=2))
    with pytest.raises(ValueError, match=r"settings\.height is not known"):
        harness.check(Case("c", "fullgraph", ("exact",), hosts=2, settings={"height": 3}))


def test_shards_are_taken_as_they_are_if_they_are_as_many_as_ranks(tmp_path: Path) -> None:
    graphs.prepare("synthetic:nodes=300,degree=4,classes=3,features=4", graphs.Settings(2), tmp_path / "mine")
    case = Case("x", "fullgraph", ("exact",), hosts=2, settings={"data": str(tmp_path / "mine")})
    fullgraph.set_up(case, tmp_path)
    assert graphs.read_manifest(tmp_path / "shards").checksum == graphs.read_manifest(tmp_path / "mine").checksum
    with pytest.raises(ValueError, match="has 2 parts, the case 3 ranks; partition again"):
        fullgraph.set_up(replace(case, hosts=3), tmp_path)
