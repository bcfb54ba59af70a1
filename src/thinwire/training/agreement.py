"""Checks before the first epoch that all ranks have the same thinwire, the same shards and the same method."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from thinwire import __version__, artifacts
from thinwire.graphs import Shard
from thinwire.links import Door
from thinwire.links.agreement import Fact, expect_same
from thinwire.training.job import Job
from thinwire.training.method import Method

SAME_OPTIONS = "start all ranks with the same options"
# Fields of a job that may differ between ranks: where a machine keeps its files, or what follows from other fields.
OWN = ("method", "data", "shards", "profile", "events", "out", "launch", "prediction")


def expect_same_start(door: Door, shard: Shard, method: Method, seed: int, gradients: str = "none") -> None:
    """Raise if ranks differ, with the same error on every rank. All ranks call it."""
    expect_same(
        door,
        {
            "thinwire": Fact(__version__, "install the same version on all machines"),
            "method": Fact(method.words(), SAME_OPTIONS),
            # Before the shards: machines that partition for themselves make others by another seed.
            "seed": Fact(seed, SAME_OPTIONS),
            "gradients": Fact(gradients, SAME_OPTIONS),
            "shards": Fact(shard.folder_content, "partition once, and copy that folder to all machines"),
        },
    )


def expect_same_job(door: Door, shard: Shard, job: Job[Any]) -> None:
    """The same check for a run of `thinwire train`, with its options."""
    expect_same_start(door, shard, job.method, job.seed)
    options = {name: value for name, value in asdict(job).items() if name not in OWN}
    options |= {name: bool(getattr(job, name)) for name in ("events", "out")}
    options["profile"] = artifacts.digest(Path(job.profile)) if job.profile else ""
    expect_same(door, {"option": Fact(options, SAME_OPTIONS)})
