"""`thinwire.init()`: one call that makes a script distributed, however it was started."""

from contextlib import ExitStack

import torch.distributed as dist

from thinwire.launch.membership import joined_alone, joined_by_torchrun
from thinwire.launch.rank_spec import rank_spec_from_torchrun
from thinwire.links import Door
from thinwire.links.exchange import LIMIT_S

NAME = "thinwire.init()"  # names this call in the error if other ranks joined the job for something else


def init(limit_s: float = LIMIT_S) -> Door:
    """A door to the other ranks: `with thinwire.init() as door:`.

    If there is a process group (by torch's own init_process_group or by launch.run), the door uses it and leaves it
    open. Otherwise this process joins torchrun's job, or makes a job of one rank, and leaves it when the door closes. A
    rank that keeps others waiting for longer than `limit_s` counts as lost.
    """
    if dist.is_initialized():
        return Door(limit_s=limit_s)
    rank_spec = rank_spec_from_torchrun()
    job = joined_by_torchrun(rank_spec, NAME) if rank_spec is not None else joined_alone(NAME)
    with ExitStack() as entered:
        entered.enter_context(job)
        door = Door(limit_s=limit_s, job=job)
        entered.pop_all()  # from here on, the door leaves the job
    return door
