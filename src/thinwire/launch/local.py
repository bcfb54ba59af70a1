"""Ranks on this machine, or a seat in the job that torchrun has started."""

import os
from collections.abc import Callable
from typing import Any

from thinwire.launch.meeting import name_of
from thinwire.launch.membership import joined
from thinwire.launch.ranks import run_ranks
from thinwire.launch.seat import Seat, seat_from_torchrun
from thinwire.launch.store import serve_store

LOOPBACK = "127.0.0.1"


def run(work: Callable[..., Any], *arguments: Any, workers: int) -> list[Any]:
    """`work(member, *arguments)` on `workers` ranks of this machine; what they return, in the order of ranks.

    Under torchrun this process is one of the ranks: it joins, and the list has its own result only.
    """
    seat = seat_from_torchrun()
    if seat is not None:
        return [_join_torchrun(seat, work, arguments)]
    if workers < 1:
        raise ValueError(f"workers is {workers}; give 1 or more")
    store, port = serve_store(LOOPBACK)
    threads = max(1, (os.cpu_count() or 1) // workers)
    seats = [Seat(rank, workers, rank, LOOPBACK, port, threads=threads, interface="lo") for rank in range(workers)]
    try:
        return run_ranks(work, arguments, seats)
    finally:
        del store  # stops serving


def _join_torchrun(seat: Seat, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    # torchrun's agent serves the store, unless it says that it does not.
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
    with joined(seat, name_of(work), hosts_store=not agent_serves and seat.rank == 0) as member:
        return work(member, *arguments)
