"""Ranks on this machine, or a rank of the job that torchrun has started."""

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from thinwire.launch.meeting import name_of
from thinwire.launch.membership import joined_by_torchrun
from thinwire.launch.rank_spec import RankSpec, rank_spec_from_torchrun
from thinwire.launch.ranks import run_ranks
from thinwire.launch.store import LOOPBACK, serve_store

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def run(work: Callable[[*Ts], T], *arguments: *Ts, workers: int) -> list[T]:
    """`work(*arguments)` on `workers` ranks of this machine; what they return, in the order of ranks.

    Under torchrun this process is one of the ranks: it joins, and the list has its own result only.
    """
    rank_spec = rank_spec_from_torchrun()
    if rank_spec is not None:
        with joined_by_torchrun(rank_spec, name_of(work)):
            return [work(*arguments)]
    if workers < 1:
        raise ValueError(f"workers is {workers}; give 1 or more")
    store, port = serve_store(LOOPBACK)
    threads = max(1, (os.cpu_count() or 1) // workers)
    rank_specs = [
        RankSpec(rank, workers, rank, LOOPBACK, port, threads=threads, interface="lo") for rank in range(workers)
    ]
    try:
        return run_ranks(work, arguments, rank_specs)
    finally:
        del store  # stops serving


def from_first_rank(value: Any) -> Any:
    """The first rank's value, on all ranks of torchrun's job: a run's files may be on its machine only.

    Without torchrun it is this process's value.
    """
    return value if rank_spec_from_torchrun() is None else run(_from_first_rank, value, workers=1)[0]


def _from_first_rank(value: Any) -> Any:
    store = _get_default_store()
    if dist.get_rank() == 0:
        store.set("from first rank", json.dumps(value))
    return json.loads(store.get("from first rank"))
