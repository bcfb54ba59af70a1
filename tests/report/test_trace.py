"""The trace: everything at its time, on a track where it overlaps nothing."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.report import made
from thinwire.report import read_runs, write_trace
from thinwire.report.records import Span
from thinwire.report.trace import computation, events, lanes


def span(start_s: float, end_s: float, kind: str = "transfer") -> Span:
    return Span(kind, "x", start_s, end_s, 0)


def test_lanes_hold_no_overlap() -> None:
    spans = [span(0, 3), span(1, 2), span(2, 4), span(3, 5), span(3, 3)]
    chosen = lanes(spans)
    assert chosen[:3] == [0, 1, 1]
    for lane in set(chosen):
        spans_s = sorted((span.start_s, span.end_s) for span, at in zip(spans, chosen, strict=True) if at == lane)
        assert all(before[1] <= after[0] for before, after in pairwise(spans_s))
    assert lanes([]) == []


def test_computation_is_what_is_left() -> None:
    busy = [span(1, 2, "codec"), span(1.5, 3, "wait"), span(0, 9, "transfer"), span(9.5, 11, "wait")]
    assert computation(busy, 10.0) == [(0.0, 1), (3, 9.5)]
    assert computation([], 2.0) == [(0.0, 2.0)]
    assert computation([], 0.0) == []


def test_a_process_a_rank(tmp_path: Path) -> None:
    runs = read_runs([made.run(tmp_path / name, method=name, ranks=3) for name in ("exact", "sylvie")])
    write_trace(tmp_path / "trace.json", runs)
    content = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in content if event["name"] == "process_name"}
    wanted = [f"{run}: {what}" for run in ("exact", "sylvie") for what in ("all epochs", "rank 0", "rank 1", "rank 2")]
    assert list(named.values()) == wanted
    pid = next(number for number, name in named.items() if name == "sylvie: rank 1")
    slices = [event for event in content if event["pid"] == pid and event["ph"] == "X"]
    # Spans were kept in the sixth epoch, which began after five, the first a little longer.
    transfers = [event for event in slices if event["cat"] == "transfer"]
    assert [event["name"] for event in transfers] == ["convs.1.forward", "convs.2.forward"]
    assert transfers[0]["ts"] == pytest.approx(1e6 * (5 * 0.2 + 0.1 + 0.1 * 0.2))
    assert transfers[0]["dur"] == pytest.approx(1e6 * 0.1)
    assert transfers[0]["args"] == {"bytes": 100_000}
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in content
        if event["pid"] == pid and event["name"] == "thread_name"
    }
    assert [tracks[event["tid"]] for event in transfers] == ["transfer", "transfer 2"]
    assert {event["cat"] for event in slices} == {"epochs", "computation", "codec", "wait", "transfer"}
    epochs = [event for event in content if event["ph"] == "X" and named[event["pid"]] == "exact: all epochs"]
    assert len(epochs) == 20
    assert epochs[1]["ts"] == pytest.approx(1e6 * epochs[0]["dur"] / 1e6)


def test_a_run_without_details_has_its_epochs(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"epoch": 0, "loss": 1.0, "seconds": 0.5}\n{"epoch": 1}\n')
    slices = [event for event in events(read_runs([tmp_path])) if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in slices] == [
        ("epoch 1", 0, 5e5),
        ("epoch 2", 5e5, 0),
    ]
