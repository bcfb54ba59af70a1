"""Workload `minibatch`: epochs of minibatch training on one set of shards. `replicated` is the limit.

A step is a run of epochs whose pipeline fills and empties within it.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire import graphs
from thinwire.bench import methods
from thinwire.bench.case import Case
from thinwire.bench.fullgraph import set_up
from thinwire.links import Door

__all__ = ["LIMIT", "check", "prepare", "set_up", "step", "summary", "units"]

MORE = {"turn": int}
LIMIT = methods.REPLICATED


def check(names: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    methods.check(names, settings, MORE)
    for name in names:
        if name.split()[0] not in (methods.SALIENT, methods.REPLICATED):
            raise ValueError(f"{name!r} samples no batches; give {methods.SALIENT} or {methods.REPLICATED}")


def prepare(door: Door, case: Case, folder: Path) -> dict[str, "Turns"]:
    shard = graphs.read_shard(folder / "shards", door.rank)
    manifest = graphs.read_manifest(folder / "shards")
    jobs = {method: methods.job_of(method, case.settings, case.seed) for method in case.methods}
    return {method: Turns(methods.run_of(job, shard, door, manifest)) for method, job in jobs.items()}


def units(method: str, settings: Mapping[str, Any]) -> int:
    return int(settings.get("turn", 1))


def step(door: Door, method: str, prepared: dict[str, "Turns"], case: Case, seed: int) -> dict[str, Any]:
    return prepared[method].take(units(method, case.settings))


class Turns:
    """A method's run, some epochs at a time."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._epoch = 0

    def take(self, epochs: int) -> dict[str, Any]:
        run = self._run
        run.horizon = self._epoch + epochs
        before = run.loader.rows_wanted
        for _ in range(epochs):
            run.step(self._epoch)
            self._epoch += 1
        rows = run.sum_over_ranks([float(run.loader.rows_wanted - before)])[0] / epochs
        return {"remote_rows": rows, "predicted": run.predicted}


def summary(case: Case, method: str, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Rows fetched from other ranks in an epoch, and what VIP had foretold of them and of all bytes."""
    own = lines[method]
    return {
        "remote_rows": statistics.mean(line["remote_rows"] for line in own),
        "predicted_rows": own[-1]["predicted"]["remote_rows"],
        "predicted_bytes": own[-1]["predicted"]["bytes_per_epoch"],
        "cached_rows": own[-1]["predicted"]["cached_rows"],
    }
