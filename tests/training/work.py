"""What ranks run: the start of `thinwire train`, each rank on a machine of its own."""

import os
import time
from typing import Any

import torch.distributed as dist

from thinwire import graphs
from thinwire.links import Door
from thinwire.training import own_shard
from thinwire.training.job import Job


def begin(jobs: list[Job[Any]], loads_s: list[float]) -> str:
    """Each by its own job, after loading for so long; the shards' checksum, or what was refused."""
    os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"] = "0", str(dist.get_rank())
    prepare = graphs.prepare

    def slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(loads_s[dist.get_rank()])
        prepare(*arguments, **options)

    graphs.prepare = slowly  # type: ignore[assignment]
    job = jobs[dist.get_rank()]
    try:
        with Door(limit_s=job.limit_s) as door, own_shard.own_shard(job, door) as (shard, _):
            return shard.folder_content
    except ValueError as refused:
        return f"{type(refused).__name__}: {refused}"
