"""A rank's part of the graph: read from a folder of shards, or from one that its machine's first rank makes."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from thinwire import graphs
from thinwire.graphs import Manifest, Shard
from thinwire.links import Door
from thinwire.scratch import scratch_folder
from thinwire.training.agreement import expect_same_job
from thinwire.training.job import Job

# Partitioning a large graph takes its time, and the launcher ends us if the rank that does it dies.
PATIENCE = timedelta(hours=6)


@contextmanager
def own_shard(job: Job[Any], door: Door) -> Iterator[tuple[Shard, Manifest]]:
    """The shard, and what is known of all of them, once all ranks have loaded theirs and agree on what to do."""
    with ExitStack() as stack:
        with door.loading():
            shard, manifest = _loaded(job, door, stack)
        expect_same_job(door, shard, job)
        yield shard, manifest


def _loaded(job: Job[Any], door: Door, stack: ExitStack) -> tuple[Shard, Manifest]:
    folder = Path(job.shards) if job.shards else _made_here(job, door, stack)
    manifest = graphs.read_manifest(folder)
    if manifest.num_parts != door.world_size:
        raise graphs.GraphError(
            f"{folder} has {manifest.num_parts} parts, this run {door.world_size} ranks; start as many, or "
            "partition again"
        )
    return graphs.read_shard(folder, door.rank).to(door.device), manifest


def _made_here(job: Job[Any], door: Door, stack: ExitStack) -> Path:
    """Each machine makes them for itself: the same graph and seed give the same shards."""
    key = f"shards/{os.environ.get('GROUP_RANK', '0')}"
    if door.local_rank != 0:
        door.store.wait([key], PATIENCE)
        return Path(door.store.get(key).decode())
    folder = Path(job.out) / "shards" if job.out else None
    there = folder is not None and graphs.is_shard_folder(folder)
    if folder is None or (there and graphs.read_manifest(folder).num_parts != door.world_size):
        folder = stack.enter_context(scratch_folder("shards")) / "shards"
        there = False
    if not there:
        graphs.prepare(job.data, graphs.Settings(door.world_size, seed=job.seed), folder)
    door.store.set(key, str(folder))
    return folder
