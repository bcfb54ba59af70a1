"""Join the process group, and leave it again."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist

from thinwire import leaving
from thinwire.launch.meeting import meet
from thinwire.launch.rank_spec import RankSpec
from thinwire.launch.store import LOOPBACK, serve_store

# Numbers the jobs that this process joins one after the other.
_runs = count()
# How long ranks wait for each other to appear: a machine may import from a slow disk.
JOIN_LIMIT_S = 600.0
# gloo's limit on an operation. The door's is shorter; this one only ends what nobody waits for any more.
OPERATION_LIMIT_S = 600.0


@contextmanager
def joined(rank_spec: RankSpec, work: str, *, hosts_store: bool = False) -> Iterator[None]:
    """In the process group while inside, with all ranks that came for the same work.

    `hosts_store` where no launcher does, as torchrun's agent may not.
    """
    os.environ["LOCAL_RANK"] = str(rank_spec.local_rank)
    if rank_spec.threads is not None:
        torch.set_num_threads(rank_spec.threads)
    if rank_spec.interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = rank_spec.interface
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank_spec.local_rank)
    store = dist.TCPStore(
        rank_spec.store_address,
        rank_spec.store_port,
        world_size=None,
        is_master=hosts_store,
        timeout=timedelta(seconds=JOIN_LIMIT_S),
        wait_for_workers=False,
    )
    # When torchrun starts a job again, the store still has what the last attempt wrote.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    runs_store = dist.PrefixStore(f"thinwire/{attempt}/{next(_runs)}", store)
    meet(runs_store, rank_spec, work, limit_s=JOIN_LIMIT_S)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=dist.PrefixStore("group", runs_store),
        rank=rank_spec.rank,
        world_size=rank_spec.world_size,
        timeout=timedelta(seconds=OPERATION_LIMIT_S),
    )
    _wait_for_all(runs_store, rank_spec.world_size)
    try:
        yield
    except BaseException:
        # An operation may still wait for a lost rank. NCCL can abort it; to destroy gloo's group would wait for it too.
        leaving.after_error(*dist.distributed_c10d._world.pg_map, store, runs_store)
        dist.distributed_c10d._abort_process_group()
        raise
    dist.destroy_process_group()


def joined_by_torchrun(rank_spec: RankSpec, work: str) -> AbstractContextManager[None]:
    """`joined` in torchrun's job. torchrun's agent serves the store, unless its environment says that it does not."""
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
    return joined(rank_spec, work, hosts_store=not agent_serves and rank_spec.rank == 0)


@contextmanager
def joined_alone(work: str) -> Iterator[None]:
    """`joined` in a job of this rank alone."""
    store, port = serve_store(LOOPBACK)
    try:
        with joined(RankSpec(0, 1, 0, LOOPBACK, port, interface="lo"), work):
            yield
    finally:
        del store  # stops serving


def _wait_for_all(store: dist.Store, world_size: int) -> None:
    """Wait until all ranks are connected: one that left before that would break the others' start."""
    if store.add("present", 1) == world_size:
        store.set("all present", "")
    store.wait(["all present"], timedelta(seconds=JOIN_LIMIT_S))
