"""What ranks run: the start of `thinwire train`, each rank on a machine of its own."""

import os
import time
from dataclasses import replace
from typing import Any

from thinwire import graphs
from thinwire.launch import Member
from thinwire.links import Door
from thinwire.training import own_shard
from thinwire.training.job import Job


def begin(member: Member, jobs: list[Job[Any]], loads_s: list[float]) -> str:
    """Each by its own job, after loading for so long; the shards' checksum, or what was refused."""
    os.environ["GROUP_RANK"] = str(member.rank)
    prepare = graphs.prepare

    def slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(loads_s[member.rank])
        prepare(*arguments, **options)

    graphs.prepare = slowly  # type: ignore[assignment]
    alone = replace(member, rank_spec=replace(member.rank_spec, local_rank=0))
    job = jobs[member.rank]
    try:
        with Door(member.store, limit_s=job.limit_s) as door, own_shard.own_shard(alone, job, door) as (shard, _):
            return shard.folder_content
    except ValueError as refused:
        return f"{type(refused).__name__}: {refused}"
