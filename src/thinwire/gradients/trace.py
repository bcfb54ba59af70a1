"""A predicted and a measured step as a trace file, for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from thinwire import artifacts
from thinwire.gradients.hook import MeasuredGroup
from thinwire.gradients.planning import Plan

PREDICTED, MEASURED = 1, 2
LANES = ("backward", "compress", "transfer", "decompress")


def write_trace(path: Path, plan: Plan, times: Sequence[MeasuredGroup] = ()) -> None:
    """A Gantt chart of the plan's timeline and, given a hook's `times`, of the last step beside it."""
    if plan.predicted is None:
        raise ValueError("write_trace: this plan has no timeline; make it with gradients.plan")
    events = [*_names(PREDICTED, "predicted"), *_names(MEASURED, "measured")]
    free_s = 0.0  # backward goes on when the group before has been compressed
    for number, spans in enumerate(plan.predicted.groups):
        label = f"group {number}: {plan.groups[number].codec}, {len(plan.groups[number].names)} tensors"
        events.append(_span(PREDICTED, "backward", label, free_s, spans["compress_begin_s"]))
        free_s = spans["compress_end_s"]
        events += [
            _span(PREDICTED, lane, label, spans[f"{lane}_begin_s"], spans[f"{lane}_end_s"]) for lane in LANES[1:]
        ]
    free_s = 0.0
    for measured in times:
        label = f"group {measured.group}"
        events.append(_span(MEASURED, "backward", label, free_s, measured.ready_s))
        free_s = measured.posted_s
        events.append(_span(MEASURED, "compress", label, measured.ready_s, measured.posted_s))
        events.append(_span(MEASURED, "transfer", label, measured.posted_s, measured.posted_s + measured.transfer_s))
        events.append(_span(MEASURED, "decompress", label, measured.arrived_s, measured.done_s))
    artifacts.write_json(path, {"traceEvents": events, "displayTimeUnit": "ms"})


def _span(process: int, lane: str, label: str, begin_s: float, end_s: float) -> dict[str, Any]:
    return {
        "name": label,
        "cat": lane,
        "ph": "X",
        "pid": process,
        "tid": LANES.index(lane) + 1,
        "ts": begin_s * 1e6,
        "dur": max(end_s - begin_s, 0.0) * 1e6,
    }


def _names(process: int, name: str) -> Iterable[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
    for number, lane in enumerate(LANES):
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": number + 1, "args": {"name": lane}}
