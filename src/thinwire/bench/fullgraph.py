"""Workload `fullgraph`: epochs of full-graph training on one set of shards. Methods as in `thinwire train`, and `free`.

A step is a run of epochs, so that what a stale method has under way is its own burden: the last transfers are waited
for before the next method's turn.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire import graphs
from thinwire.bench import methods
from thinwire.bench.case import Case
from thinwire.bench.free import FreeDoor
from thinwire.links import Door

MORE = {"turn": int, "float32_turn": int}


def check(names: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    methods.check(names, settings, MORE)


def set_up(case: Case, folder: Path) -> None:
    """Partition once, before there are ranks."""
    settings = graphs.Settings(case.hosts * case.ranks_per_host, seed=case.seed)
    graphs.prepare(str(case.settings.get("data", "synthetic")), settings, folder / "shards")


def prepare(door: Door, case: Case, folder: Path) -> dict[str, "Turns"]:
    from thinwire.fullgraph.run import Run  # with PyG, which only ranks need

    shard = graphs.read_shard(folder / "shards", door.rank)
    manifest = graphs.read_manifest(folder / "shards")
    made = {}
    for method in case.methods:
        job = methods.job_of(method, case.settings, case.seed)
        own = FreeDoor(door) if method.startswith(methods.FREE) else door
        made[method] = Turns(Run(job, shard, own, manifest))
    return made


def units(method: str, settings: Mapping[str, Any]) -> int:
    """Epochs in a step: fewer where they take long, as float32 messages on a slow link do."""
    thick = method.split()[0] in ("exact", "pipe")
    return int(settings.get("float32_turn" if thick else "turn", settings.get("turn", 10)))


def step(door: Door, method: str, prepared: dict[str, "Turns"], case: Case, seed: int) -> dict[str, Any]:
    return prepared[method].take(units(method, case.settings))


class Turns:
    """A method's run, some epochs at a time."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._epoch = 0

    def take(self, epochs: int) -> dict[str, Any]:
        for _ in range(epochs):
            self._run.step(self._epoch)
            self._epoch += 1
        self._run.places.settle()
        return {}
