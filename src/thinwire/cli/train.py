"""`thinwire train`."""

import json
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from thinwire import artifacts, graphs, launch
from thinwire.cli import progress, tables
from thinwire.launch import Lab, lab

if TYPE_CHECKING:  # PyG takes seconds to import: only where it is used
    from thinwire.fullgraph import Plan
    from thinwire.fullgraph.run import Job

LOOK_S = 0.2


@dataclass
class Train:
    """Train on the whole graph, a part of it on each rank.

    thinwire train                                     a synthetic graph, two ranks

    thinwire train --method sylvie                     one-bit messages, an epoch stale

    thinwire train --data shards --hosts 4 --rate 100mbit  on emulated hosts (root)
    """

    joins: ClassVar[bool] = False
    data: str = "synthetic"
    """What `thinwire partition` takes, or a folder it has written."""
    model: Literal["sage", "gcn", "gin"] = "sage"
    """Kind of layers."""
    layers: int = 3
    """How many."""
    hidden: int = 128
    """How wide."""
    norm: bool = True
    """LayerNorm between them."""
    method: Literal["exact", "pipe", "sylvie"] = "exact"
    """What crosses the wire, and when."""
    bits: int = 1
    """sylvie: bits a value."""
    staleness: Literal[0, 1] = 1
    """sylvie: 0 synchronous, 1 an epoch stale."""
    sync_every: int = 10
    """pipe, sylvie: every so many-th epoch is synchronous; 0 never."""
    epochs: int = 60
    """How many."""
    lr: float = 0.01
    """Adam's learning rate."""
    workers: int = 2
    """Ranks on this machine."""
    hosts: int = 0
    """Emulated hosts instead, one rank each."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each emulated host's link, both ways."""
    seed: int = 0
    """Seed of weights, partition and rounding."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file."""

    def verify(self) -> None:
        if self.json is not None:
            artifacts.check_writable(self.json)
        for name in ("layers", "hidden", "epochs", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}; give 1 or more")
        lab.parse_rate(self.rate)
        self._plan()
        if launch.seat_from_torchrun() is not None:
            raise ValueError("`thinwire train` does not join torchrun's jobs yet; run it without torchrun")
        if self.hosts and (problem := lab.missing()):
            raise ValueError(problem)

    def run(self, console: Console) -> None:
        from thinwire.fullgraph.run import Job

        with tempfile.TemporaryDirectory(prefix="thinwire-train-") as folder:
            shards = self._shards(Path(folder))
            events = Path(folder) / "events.jsonl"
            events.touch()
            job = Job(
                shards=str(shards),
                plan=self._plan(),
                model=self.model,
                layers=self.layers,
                hidden=self.hidden,
                norm=self.norm,
                lr=self.lr,
                epochs=self.epochs,
                events=str(events),
            )
            with progress.bar(f"{self.method}: starting") as told:
                result = self._watched(job, events, console, told)
        result["data"] = self.data
        console.print(tables.trained(result))
        if self.json is not None:
            artifacts.write_json(self.json, {**artifacts.stamp(seed=self.seed, world_size=result["workers"]), **result})
            console.print(f"written: {self.json}", highlight=False)

    def _plan(self) -> "Plan":
        from thinwire.fullgraph import Plan

        return Plan(self.method, self.bits, self.staleness, self.sync_every, self.seed)

    def _shards(self, folder: Path) -> Path:
        ranks = self.hosts or self.workers
        given = Path(self.data)
        if graphs.is_shard_folder(given):
            parts = graphs.read_manifest(given).num_parts
            if parts != ranks:
                raise ValueError(
                    f"{given} has {parts} parts, this run {ranks} ranks; give --workers {parts} (or --hosts), "
                    "or partition again"
                )
            return given
        with Console(stderr=True).status("partition") as status:
            graphs.prepare(self.data, graphs.Settings(ranks, seed=self.seed), folder / "shards", on_phase=status.update)
        return folder / "shards"

    def _watched(
        self, job: "Job", events: Path, console: Console, told: Callable[[float, str], None]
    ) -> dict[str, Any]:
        from thinwire.fullgraph.run import work

        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(events, over, console, told))
        watcher.start()
        try:
            if self.hosts:
                with Lab(self.hosts, rate=self.rate) as hosts:
                    return dict(hosts.run(work, job)[0])
            return dict(launch.run(work, job, workers=self.workers)[0])
        finally:
            over.set()
            watcher.join()

    def _watch(self, events: Path, over: threading.Event, console: Console, told: Callable[[float, str], None]) -> None:
        """A bar on a terminal; elsewhere a line now and then."""
        seen = 0
        last = False
        while not last:
            last = over.wait(LOOK_S)
            whole, _, _ = events.read_text().rpartition("\n")
            rows = [json.loads(line) for line in whole.splitlines()]
            for row in rows[seen:]:
                line = tables.epoch_line(row, self.epochs)
                told((row["epoch"] + 1) / self.epochs, line)
                if not console.is_terminal and (row["epoch"] + 1) % max(1, self.epochs // 10) == 0:
                    console.print(line, highlight=False)
            seen = len(rows)
