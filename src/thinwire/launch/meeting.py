"""Ranks meet at the store before they connect, so that an error can name who is missing or came for something else."""

import json
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from thinwire import __version__
from thinwire.launch.failures import StartFailed
from thinwire.launch.rank_spec import RankSpec


def name_of(work: Callable[..., object]) -> str:
    """A name for the work, the same on all ranks, whatever their scripts are called."""
    return getattr(work, "__qualname__", type(work).__qualname__)


def meet(store: dist.Store, rank_spec: RankSpec, work: str, *, limit_s: float) -> None:
    """Wait for all ranks, and raise StartFailed unless they run the same thinwire and came for the same work."""
    store.set(_key(rank_spec.rank), json.dumps({"thinwire": __version__, "work": work}))
    keys = [_key(rank) for rank in range(rank_spec.world_size)]
    try:
        store.wait(keys, timedelta(seconds=limit_s))
    except dist.DistStoreError:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise StartFailed(
            f"{_ranks(missing)} of {rank_spec.world_size} did not come within {limit_s:.0f} s; look at their own "
            "output, and start as many processes as the job has ranks"
        ) from None
    by_rank = [json.loads(text) for text in store.multi_get(keys)]
    for name, remedy in {
        "thinwire": "install the same version on all machines",
        "work": "start all ranks with the same command",
    }.items():
        for rank, facts in enumerate(by_rank):
            if facts[name] != by_rank[0][name]:
                what = "thinwire" if name == "thinwire" else "come for"
                raise StartFailed(
                    f"rank 0 has {what} {by_rank[0][name]}, rank {rank} has {what} {facts[name]}; {remedy}"
                )


def _key(rank: int) -> str:
    return f"here/{rank}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
