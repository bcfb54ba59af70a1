"""A rank before it starts: its number, its host, and how it finds the others."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

TORCHRUN_WORDS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class RankSpec:
    """One rank's place in a run, known before the rank exists."""

    rank: int
    world_size: int
    local_rank: int
    store_address: str
    store_port: int
    threads: int | None = None  # None leaves torch's own choice
    interface: str | None = None  # gloo listens on this one only; None leaves gloo's own choice
    namespace: str | None = None  # the emulated host that the rank lives in
    cores: frozenset[int] | None = None  # those that the rank may use; None leaves it to the kernel


def rank_spec_from_torchrun(environment: Mapping[str, str] = os.environ) -> RankSpec | None:
    """The rank that torchrun, or whatever sets its variables, has given this process; None where nobody did."""
    if "RANK" not in environment:
        return None
    missing = [word for word in TORCHRUN_WORDS if word not in environment]
    if missing:
        raise ValueError(
            f"the environment has RANK but not {', '.join(missing)}; start with torchrun, which sets them all, "
            "or unset RANK to let thinwire start its own ranks"
        )
    return RankSpec(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment["LOCAL_RANK"]),
        store_address=environment["MASTER_ADDR"],
        store_port=int(environment["MASTER_PORT"]),
    )
