"""Weights' gradients by codecs in full-graph runs: they learn, go on to the bit, are chosen where wires are slow."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fullgraph.work_gradients import results
from thinwire import artifacts, graphs, launch
from thinwire.fullgraph import Exact, Method, Sylvie
from thinwire.prediction import even
from thinwire.training.job import Job

DATA = "synthetic:nodes=1000,classes=4,noise=2,label_noise=0"
JOB: Job[Method] = Job(Sylvie(staleness=0), DATA, layers=2, hidden=32, evaluate_every=100)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards") / "shards"
    graphs.prepare(DATA, graphs.Settings(2), folder)
    return str(folder)


def run(*jobs: Job[Any], workers: int = 2) -> list[dict[str, Any]]:
    return launch.run(results, jobs, workers=workers)[0]


def test_a_hundredth_of_the_gradients_learns_what_exact_learns(shards: str) -> None:
    """Within two points of its score, though by far fewer bytes."""
    job = replace(JOB, shards=shards, epochs=40)
    exact, *coded = run(
        replace(job, method=Exact()), *(replace(job, gradients=codec) for codec in ("none", "topk:0.01", "sign"))
    )
    assert exact["gradients"] == "none"
    none, topk, sign = coded
    for found in coded:
        assert found["test_score"] > exact["test_score"] - 0.02
        assert found["float32_bytes_per_epoch"] == exact["bytes_per_epoch"]
    assert topk["bytes_per_epoch"] < sign["bytes_per_epoch"] < none["bytes_per_epoch"]


def test_memory_goes_on_to_the_bit_and_starts_from_zero_at_another_number_of_ranks(shards: str, tmp_path: Path) -> None:
    job = replace(JOB, method=Sylvie(), shards=shards, gradients="topk:0.01", epochs=9, checkpoint_every=5)
    kept = replace(job, out=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    whole, _, again = run(job, replace(kept, epochs=5), replace(kept, resume=True))
    assert again["losses"] == whole["losses"]
    again = run(replace(kept, shards="", epochs=12, resume=True), workers=3)[0]
    assert again["losses"][:9] == whole["losses"]
    assert again["losses"][11] < again["losses"][9]


def test_auto_takes_a_codec_on_slow_wires_and_says_so(shards: str, tmp_path: Path) -> None:
    profile, out = tmp_path / "profile.json", tmp_path / "run"
    artifacts.write_json(profile, even(2, 1e6).to_json())
    out.mkdir()
    job = replace(JOB, shards=shards, epochs=13, profile=str(profile))
    kept = replace(job, out=str(out), events=str(out / "events.jsonl"), checkpoint_every=10)
    exact, _, again, onwards = run(
        replace(job, method=Exact()),
        kept,
        replace(kept, resume=True, epochs=15),
        replace(kept, resume=True, resume_epoch="10", epochs=15),
    )
    assert exact["gradients"] == "none"
    assert again["gradients"] == onwards["gradients"] != "none"
    assert again["losses"] == onwards["losses"]  # chosen once, and watched as before
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["gradients"] for event in events] == ["none"] * 8 + [again["gradients"]] * 7
    assert events[8]["bytes"] < 0.8 * events[7]["bytes"]
    assert events[8]["float32_bytes"] == events[7]["float32_bytes"]
    plan = json.loads((out / "plan.1.json").read_text())["gradients"]
    assert plan["codec"] == again["gradients"]
    assert "is predicted to take" in plan["why"]
    assert plan["predicted_step_s"]["none"] > 1.1 * plan["predicted_step_s"][plan["codec"]]
    assert json.loads((out / "plan.json").read_text())["gradients"] == "auto"
