"""Workload `minibatch`: epochs of minibatch training on one set of shards. `replicated` is the limit.

A step is a number of epochs. Their pipeline fills and empties within the step.

With `forward_ms` in the case, compute is paced: a forward pass takes that long, by sleeping for the rest, as on hosts
whose computation leaves cores free for the network. Everything else is real.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire import minibatch
from thinwire.bench import columns, methods
from thinwire.bench.case import Case
from thinwire.bench.fullgraph import set_up
from thinwire.bench.turns import Turns
from thinwire.links import Door

__all__ = ["CAPTION", "COLUMNS", "LIMIT", "check", "prepare", "set_up", "step", "summary", "units"]

MORE = {"turn": int, "forward_ms": int}
LIMIT = methods.REPLICATED
COLUMNS = (
    columns.SECONDS,
    columns.RATIO,
    columns.MB_SENT,
    columns.WAITING,
    columns.beside_limit("/full"),
    columns.figure("rows", "remote_rows", ",.0f"),
    columns.figure("predicted", "predicted_rows", ",.0f"),
)
CAPTION = columns.CAPTION


def check(names: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    methods.check(names, settings, MORE)
    for name in names:
        if not methods.is_sampled(name):
            sampling = ", ".join([*minibatch.METHODS, methods.REPLICATED])
            raise ValueError(f"{name!r} samples no batches; give one of {sampling}")


def prepare(door: Door, case: Case, folder: Path) -> dict[str, Any]:
    shard, manifest = methods.loaded(door, folder)
    turns = {}
    for method in case.methods:
        run = methods.run_of(methods.job_of(method, case.settings, case.seed), shard, door, manifest)
        run.forward_least_s = int(case.settings.get("forward_ms", 0)) / 1e3
        turns[method] = Turns(run)
    return turns


def units(method: str, settings: Mapping[str, Any]) -> int:
    return int(settings.get("turn", 1))


def step(door: Door, method: str, prepared: dict[str, Any], case: Case, seed: int) -> dict[str, Any]:
    turns, epochs = prepared[method], units(method, case.settings)
    before = turns.run.loader.rows_wanted
    turns.take(epochs)
    rows = turns.run.sum_over_ranks([float(turns.run.loader.rows_wanted - before)])[0] / epochs
    return {"remote_rows": rows, "predicted": turns.run.predicted}


def summary(case: Case, method: str, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Rows fetched from other ranks in an epoch, and the rows and bytes that VIP predicted."""
    method_lines = lines[method]
    return {
        "remote_rows": statistics.mean(line["remote_rows"] for line in method_lines),
        "predicted_rows": method_lines[-1]["predicted"]["remote_rows"],
        "predicted_bytes": method_lines[-1]["predicted"]["bytes_per_epoch"],
        "cached_rows": method_lines[-1]["predicted"]["cached_rows"],
    }
