"""The simulator: the golden table, links that are shared, sends that block, pictures, and laws of any pipeline."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.crossmesh.pipelines import schedule
from thinwire.crossmesh.pipelines.simulator import Costs, StageCost, WireCost, chain, simulate
from thinwire.crossmesh.pipelines.timeline import Timeline, write_trace

N, M = 4, 16
SCHEDULES = {
    "1f1b": schedule.one_f_one_b(N, M),
    "eager": schedule.eager_1f1b(N, M),
    "1f1b split": schedule.split(schedule.one_f_one_b(N, M)),
    "eager split": schedule.split(schedule.eager_1f1b(N, M)),
}
# F = 1, B = 2, I = W = 1, each transfer c: iterations of the four schedules.
GOLDEN = {
    0: (57, 57, 54, 54),
    0.25: (64, 58.5, 55.5, 55.5),
    0.5: (71, 60, 57, 57),
    1: (85, 63, 71, 60),
    1.5: (99, 66, 85, 63),
}


@pytest.mark.parametrize("transfer_s", GOLDEN)
def test_the_golden_table(transfer_s: float) -> None:
    costs = chain(N, forward_s=1, backward_s=2, transfer_s=transfer_s)
    assert tuple(simulate(made, costs).seconds for made in SCHEDULES.values()) == GOLDEN[transfer_s]


def test_peaks() -> None:
    costs = chain(N, forward_s=1, backward_s=2, transfer_s=1)
    assert simulate(SCHEDULES["1f1b split"], costs).peak_activations == (4, 3, 2, 1)
    assert simulate(SCHEDULES["eager"], costs).peak_activations == (7, 5, 3, 1)
    heavy = replace(costs, stages=tuple(replace(stage, activation_bytes=10) for stage in costs.stages))
    assert simulate(SCHEDULES["eager"], heavy).peak_bytes == (70, 50, 30, 10)


def test_blocking_sends_hold_up_computation() -> None:
    """Two stages, one micro-batch: nothing overlaps anyway. Two: the second forward waits for the first's transfer."""
    costs = chain(2, forward_s=1, backward_s=2, transfer_s=3)
    one, two = schedule.gpipe(2, 1), schedule.gpipe(2, 2)
    assert simulate(one, costs).seconds == simulate(one, costs, blocking=True).seconds == 1 + 3 + 1 + 2 + 3 + 2
    # Forwards leave at 1 and 2 and arrive at 4 and 5; blocking, at 1 and 5, and at 4 and 8.
    assert simulate(two, costs).seconds == 6 + 2 + 2 + 3 + 2
    blocked = simulate(two, costs, blocking=True)
    assert [span.start_s for span in blocked.spans if span.stage == 0 and span.kind == "F" and not span.wire] == [0, 4]
    assert blocked.seconds == 9 + 2 + 3 + 2 + 3 + 2


def test_transfers_meet_at_network_cards() -> None:
    stage = StageCost(1, 2, 1, 1)
    wires = (WireCost("near", 0, 1, 1, 1), WireCost("far", 0, 2, 5, 1), WireCost("on", 1, 2, 1, 1))
    once = schedule.gpipe(3, 1)
    free = simulate(once, Costs((stage,) * 3, wires))
    cards = simulate(once, Costs((stage,) * 3, wires, hosts=(0, 1, 2)))
    arrivals = [
        {span.wire: span.end_s for span in timeline.spans if span.kind == "F" and span.wire}
        for timeline in (free, cards)
    ]
    assert arrivals[0] == {"near": 2, "far": 6, "on": 4}
    # `near` and `far` share the way out of the first host, `on` and `far` that into the last: each at half its rate.
    assert arrivals[1] == {"near": 3, "far": 8, "on": 6}
    together = simulate(once, Costs((stage,) * 3, wires, hosts=(0, 0, 0)))
    assert together.seconds == free.seconds


times = st.floats(0, 3, allow_nan=False).map(lambda x: round(x, 2))


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_laws(n: int, m: int, data: st.DataObject) -> None:
    drawn = [data.draw(st.tuples(times, times, times)) for _ in range(n)]
    stages = tuple(StageCost(f, i + w, i, w) for f, i, w in drawn)
    wires = tuple(WireCost(f"h{k}", k - 1, k, data.draw(times), data.draw(times)) for k in range(1, n))
    costs = Costs(stages, wires)
    for build in (schedule.gpipe, schedule.one_f_one_b, schedule.eager_1f1b):
        plain = build(n, m)
        seconds = simulate(plain, costs).seconds
        close = 1e-9 + seconds * 1e-9
        # No stage is done sooner than its own work takes; sends that block, and links that are shared, never help.
        assert seconds >= max(m * (stage.forward_s + stage.backward_s) for stage in stages) - close
        assert simulate(plain, costs, blocking=True).seconds >= seconds - close
        assert simulate(plain, replace(costs, hosts=tuple(range(n)))).seconds >= seconds - close
        # I's result leaves no later than B's did, and W takes the rest of B's place.
        assert simulate(schedule.split(plain), costs).seconds <= seconds + close
        _check_spans(simulate(schedule.split(plain), costs), m)


def _check_spans(timeline: Timeline, m: int) -> None:
    """A stage does one thing at a time, and all of it."""
    for stage in range(timeline.num_stages):
        spans_s = sorted((span.start_s, span.end_s) for span in timeline.spans if span.stage == stage and not span.wire)
        assert len(spans_s) == (3 if stage else 2) * m
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(spans_s))


def test_picture() -> None:
    costs = chain(2, forward_s=1, backward_s=2, transfer_s=1)
    drawn = simulate(schedule.split(schedule.eager_1f1b(2, 3)), costs).draw().splitlines()
    assert drawn[0].startswith("13 s.")
    assert all(len(line) <= 100 for line in drawn)
    assert drawn[1].startswith("r0 F0=====F1======F2=====")
    assert drawn[2].startswith("r1 ...............F0=====I0++++++W0~~~~~F1")


def test_trace_file(tmp_path: Path) -> None:
    costs = chain(2, forward_s=1, backward_s=2, transfer_s=1)
    timeline = simulate(schedule.one_f_one_b(2, 2), costs)
    write_trace(tmp_path / "trace.json", {"predicted": timeline})
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 2 * 2 * 2 + 2 * 2
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {
        "predicted",
        "r0",
        "r1",
        "r0 sends h1 forward",
        "r1 sends h1 backward",
    }
    assert max(event["ts"] + event["dur"] for event in spans) == timeline.seconds * 1e6


def test_wires_lead_to_later_stages() -> None:
    stage = StageCost(1, 2, 1, 1)
    with pytest.raises(ValueError, match="must go to a later one"):
        Costs((stage, stage), (WireCost("back", 1, 0, 1, 1),))
    with pytest.raises(ValueError, match="costs are of 2"):
        simulate(schedule.gpipe(3, 1), Costs((stage, stage), ()))
