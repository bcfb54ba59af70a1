"""Which method is chosen and why; where a recording begins; that scripts survive JSON."""

import json

import pytest

from thinwire import fullgraph
from thinwire.bench.result import MethodRow
from thinwire.links.script import COMPUTE, POST, WAIT, Operation, Script
from thinwire.prediction import Recording, even, predict
from thinwire.prediction.check import beside, errors
from thinwire.prediction.comparison import choose
from thinwire.training.window import WARM


def recording(method: str, compute_s: float, size: int, ranks: int = 2) -> Recording:
    steps = [(COMPUTE, compute_s, ""), (POST, 0.0, "x"), (WAIT, 0.0, "x")]
    script = Script([steps], {"x": Operation("all_to_all", dict.fromkeys(range(ranks), size))}, 0.0)
    return Recording(method, [script] * ranks, [1.0], 2 * size, 1 << 20)


def test_thin_messages_on_slow_wires_and_none_on_fast_ones() -> None:
    both = [recording("exact", 0.1, 10_000_000), recording("sylvie", 0.12, 400_000)]
    slow, fast = (predict(both, even(2, rate), cores=None) for rate in (1e8, 1e11))
    assert slow.recommended == "sylvie"
    assert "exact waits" in slow.why
    assert fast.recommended == "exact"
    assert "too little" in fast.why
    assert slow.rows[0].speedup == 1
    assert slow.rows[1].speedup == pytest.approx(slow.rows[0].epoch_s / slow.rows[1].epoch_s)
    assert slow.rows[1].bytes_per_epoch == 800_000
    # The chart turns from one to the other as wires get faster, and exact's epochs only get shorter.
    every = [epoch_s["exact"] for epoch_s in slow.rates.values()]
    assert every == sorted(every, reverse=True)
    best = [min(epoch_s, key=epoch_s.__getitem__) for epoch_s in slow.rates.values()]
    assert best == sorted(best, reverse=True)
    assert set(best) == {"sylvie", "exact"}
    content = slow.to_json()
    assert content["recommended"] == "sylvie"
    assert set(content["rows"][0]) >= {"method", "epoch_s", "bytes_per_epoch", "memory_bytes", "speedup", "model"}


def test_where_exact_hardly_waits_little_is_not_worth_it() -> None:
    def chosen(seconds: float) -> str:
        both = [recording("exact", 0.1, 1000), recording("pipe", seconds, 1000)]
        return predict(both, even(2, 1e11, 0.0), cores=None, chart=False).recommended

    assert chosen(0.093) == "exact"
    assert chosen(0.08) == "pipe"


def test_without_exact_the_first_is_the_measure() -> None:
    both = [recording("pipe", 0.1, 10_000_000), recording("sylvie", 0.12, 400_000)]
    prediction = predict(both, even(2, 1e8), cores=None)
    assert (prediction.rows[0].speedup, prediction.recommended) == (1.0, "sylvie")
    assert "the fastest of these" in prediction.why
    assert predict([recording("salient", 0.1, 9)], even(2, 1e8), cores=None).recommended == "salient"


def test_one_rank_has_nothing_to_send() -> None:
    alone = [recording("exact", 0.2, 0, ranks=1), recording("sylvie", 0.1, 0, ranks=1)]
    assert predict(alone, even(1, 1e9), cores=None).recommended == "exact"


def test_of_about_equal_ones_the_gentlest_and_no_sampling() -> None:
    assert choose({"exact": 1.01, "sylvie": 1.0}) == "exact"
    assert choose({"exact": 1.03, "sylvie": 1.0}) == "sylvie"
    assert choose({"sylvie": 1.0, "sylvie --staleness 0": 1.01, "adaqp": 1.015}) == "adaqp"
    assert choose({"exact": 1.0, "salient": 0.1}) == "exact"
    assert choose({"salient": 0.1}) == "salient"


@pytest.mark.parametrize(
    "method",
    [
        fullgraph.Exact(),
        fullgraph.Pipe(),
        fullgraph.Sylvie(staleness=0),
        fullgraph.Sylvie(staleness=1),
        fullgraph.Sylvie(staleness=1, sync_every=4),
        fullgraph.Sylvie(staleness=1, sync_every=0),
        fullgraph.AdaQP(),
        fullgraph.AdaQP(assign_every=5),
        fullgraph.AdaQP(assign_every=2),
        fullgraph.AdaQP(bits_choice=(2, 4, 8)),
    ],
    ids=lambda method: method.words(),
)
def test_a_window_counts_every_kind_of_epoch_as_often_as_it_comes(method: fullgraph.Method) -> None:
    window = method.window()
    assert sum(window.weights) == pytest.approx(1.0)
    assert window.noted.start >= WARM
    counted = dict(zip(window.noted, window.weights, strict=True))
    every = getattr(method, "sync_every", 0)
    if method.may_be_stale and every:
        assert sum(w for epoch, w in counted.items() if not method.is_stale(epoch)) == pytest.approx(1 / every)
        assert window.weights[:2] == [0.0, 0.0]
    if isinstance(method, fullgraph.AdaQP):
        assert method.assigns(window.noted.start - 1)
        share = method.share_that_sends_all(window.noted.start)
        assert sum(w for epoch, w in counted.items() if method.sends_all(epoch)) >= share - 1e-9


def test_a_script_survives_json() -> None:
    made = recording("exact", 0.5, 7).scripts[0]
    assert Script.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_measured_beside_predicted() -> None:
    both = [recording("exact", 0.1, 10_000_000), recording("sylvie", 0.12, 400_000)]
    predicted = predict(both, even(2, 1e8), cores=None, chart=False)
    measured = [MethodRow(name, seconds, 0, 0, 1, 0, 0, 1, {}) for name, seconds in (("exact", 0.1), ("sylvie", 0.2))]
    rows = beside(measured, predicted, "100mbit")
    assert [row.method for row in rows] == ["exact at 100mbit", "sylvie at 100mbit"]
    assert (rows[1].more or {})["recommended_over_best"] == 2.0
    median, worst = errors(rows)
    assert worst == pytest.approx(predicted.rows[0].epoch_s / 0.1 - 1)
    assert median < worst
