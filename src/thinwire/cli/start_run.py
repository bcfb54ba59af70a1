"""A run from `thinwire train`'s options on: its shards, its ranks, and what is left where it fails."""

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
    """Where a run's ranks are: on this machine, on emulated hosts, or in a job of torchrun's."""

    workers: int
    hosts: int = 0
    rate: str = ""

    @property
    def count(self) -> int:
        """As the options say; torchrun says for itself."""
        return self.hosts or self.workers

    def to_json(self) -> dict[str, Any]:
        if self.hosts:
            return {"kind": "lab", "hosts": self.hosts, "rate": self.rate}
        if (rank_spec := launch.rank_spec_from_torchrun()) is not None:
            return {"kind": "torchrun", "ranks": rank_spec.world_size}
        return {"kind": "local", "ranks": self.workers}

    def train(self, job: Job[Any], events: Path, console: Console) -> dict[str, Any]:
        """The result, after showing how it goes."""
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
            # For the report of what there is; a run that was refused before it began is as it was.
            if job.out and not console.quiet and _written_s(job) != before:
                rank_spec = launch.rank_spec_from_torchrun()
                ranks = rank_spec.world_size if rank_spec is not None else self.count
                said = (isinstance(error, launch.RankFailed) and error.reason) or str(error)
                stamp = artifacts.stamp(seed=job.seed, world_size=ranks)
                artifacts.write_json(Path(job.out) / FAILED, {**stamp, "error": said})
            raise


def shards_for(data: str, ranks: Ranks, seed: int, out: Path | None, scratch: Path) -> str:
    """Their folder: given, or kept by the run that this one goes on with, or made now.

    In a job of torchrun's, each machine sees to its own: none is named.
    """
    given, joins = Path(data), launch.rank_spec_from_torchrun() is not None
    if graphs.is_shard_folder(given):
        parts = graphs.read_manifest(given).num_parts
        if not joins and parts != ranks.count:
            option = "--hosts" if ranks.hosts else "--workers"
            raise ValueError(
                f"{given} has {parts} parts, this run {ranks.count} ranks; give {option} {parts}, or partition again"
            )
        return str(given.resolve())
    if joins:
        return ""
    kept = (out or scratch) / "shards"
    if graphs.is_shard_folder(kept):
        if graphs.read_manifest(kept).num_parts == ranks.count:
            return str(kept.resolve())
        kept = scratch / "shards"  # another number of ranks goes on
    with Console(stderr=True).status("partition") as status:
        graphs.prepare(data, graphs.Settings(ranks.count, seed=seed), kept, on_phase=status.update)
    return str(kept.resolve())


def _written_s(job: Job[Any]) -> float | None:
    """When the run last began."""
    path = Path(job.out) / PLAN
    return path.stat().st_mtime if job.out and path.exists() else None
