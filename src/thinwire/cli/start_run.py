"""Starts a run from the options of `thinwire train`: its shards, its ranks, and failed.json if it fails."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from thinwire import artifacts, graphs, launch, minibatch
from thinwire.cli.watch import watched
from thinwire.fullgraph.rank import work as train_on_all
from thinwire.launch import Lab
from thinwire.minibatch.rank import work as train_on_batches
from thinwire.training.job import Job
from thinwire.training.run import FAILED, PLAN


@dataclass(frozen=True)
class Ranks:
    """Where a run's ranks are: on this machine, on emulated hosts, or in a torchrun job."""

    workers: int
    hosts: int = 0
    rate: str = ""

    @property
    def count(self) -> int:
        """The number of ranks by the options; a torchrun job has its own number."""
        return self.hosts or self.workers

    def to_json(self) -> dict[str, Any]:
        if self.hosts:
            return {"kind": "lab", "hosts": self.hosts, "rate": self.rate}
        if (rank_spec := launch.rank_spec_from_torchrun()) is not None:
            return {"kind": "torchrun", "ranks": rank_spec.world_size}
        return {"kind": "local", "ranks": self.workers}

    def train(self, job: Job[Any], events: Path, console: Console) -> dict[str, Any]:
        """Train, show the progress, and return the result."""
        job = replace(job, events=str(events.resolve()))
        work = train_on_batches if job.method.name in minibatch.METHODS else train_on_all
        before = _written_s(job)
        try:
            with watched(events, job.method.name, job.epochs, console):
                if self.hosts:
                    with Lab(self.hosts, rate=self.rate) as hosts:
                        return dict(hosts.run(work, job)[0])
                return dict(launch.run(work, job, workers=self.workers)[0])
        except Exception as error:
            # failed.json is for reports. A run that was refused before it began keeps its files as they are.
            if job.out and not console.quiet and _written_s(job) != before:
                rank_spec = launch.rank_spec_from_torchrun()
                ranks = rank_spec.world_size if rank_spec is not None else self.count
                message = (isinstance(error, launch.RankFailed) and error.reason) or str(error)
                stamp = artifacts.stamp(seed=job.seed, world_size=ranks)
                artifacts.write_json(Path(job.out) / FAILED, {**stamp, "error": message})
            raise


def shards_for(data: str, ranks: Ranks, seed: int, out: Path | None, scratch: Path) -> str:
    """The folder of shards: `data` itself, or that of the run to resume, or a new one.

    Empty in a torchrun job, where each machine makes its own shards.
    """
    folder, joins = Path(data), launch.rank_spec_from_torchrun() is not None
    if graphs.is_shard_folder(folder):
        parts = graphs.read_manifest(folder).num_parts
        if not joins and parts != ranks.count:
            option = "--hosts" if ranks.hosts else "--workers"
            raise ValueError(
                f"{folder} has {parts} parts, this run {ranks.count} ranks; give {option} {parts}, or partition again"
            )
        return str(folder.resolve())
    if joins:
        return ""
    kept = (out or scratch) / "shards"
    if graphs.is_shard_folder(kept):
        if graphs.read_manifest(kept).num_parts == ranks.count:
            return str(kept.resolve())
        kept = scratch / "shards"  # the run resumes with another number of ranks
    with Console(stderr=True).status("partition") as status:
        graphs.prepare(data, graphs.Settings(ranks.count, seed=seed), kept, on_phase=status.update)
    return str(kept.resolve())


def _written_s(job: Job[Any]) -> float | None:
    """When the run last began, by the time of its plan.json; None if it has none."""
    path = Path(job.out) / PLAN
    return path.stat().st_mtime if job.out and path.exists() else None
