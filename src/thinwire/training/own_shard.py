"""A rank's shard of the graph, read from a given folder or from one that the machine's first rank makes."""

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

# How long ranks wait for a partition. A large graph takes long, and if the partitioning rank dies, the launcher ends
# the others.
PATIENCE = timedelta(hours=6)


@contextmanager
def own_shard(job: Job[Any], door: Door) -> Iterator[tuple[Shard, Manifest]]:
    """This rank's shard and the manifest, once all ranks have loaded theirs and agree on the job."""
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
    """The folder of shards that this machine makes. Each machine makes its own: graph and seed determine the shards."""
    key = f"shards/{os.environ.get('GROUP_RANK', '0')}"
    if door.local_rank != 0:
        door.store.wait([key], PATIENCE)
        return Path(door.store.get(key).decode())
    folder = Path(job.out) / "shards" if job.out else None
    exists = folder is not None and graphs.is_shard_folder(folder)
    if folder is None or (exists and graphs.read_manifest(folder).num_parts != door.world_size):
        folder = stack.enter_context(scratch_folder("shards")) / "shards"
        exists = False
    if not exists:
        graphs.prepare(job.data, graphs.Settings(door.world_size, seed=job.seed), folder)
    door.store.set(key, str(folder))
    return folder
