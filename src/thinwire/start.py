"""One call that makes a script distributed, wherever it was started."""

from contextlib import ExitStack

import torch.distributed as dist

from thinwire.launch.membership import joined_alone, joined_by_torchrun
from thinwire.launch.rank_spec import rank_spec_from_torchrun
from thinwire.links import Door
from thinwire.links.exchange import LIMIT_S

NAME = "thinwire.init()"  # what this rank came for, in the error that names one that came for something else


def init(limit_s: float = LIMIT_S) -> Door:
    """A door to the other ranks: `with thinwire.init() as door:`.

    Where there is a process group (torch's own init_process_group, or launch.run's), the door goes over it and leaves
    it alone. Otherwise this process joins torchrun's job, or makes a job of one rank, and leaves it again when the door
    closes. A rank that keeps others waiting for longer than `limit_s` counts as lost.
    """
    if dist.is_initialized():
        return Door(limit_s=limit_s)
    rank_spec = rank_spec_from_torchrun()
    job = joined_by_torchrun(rank_spec, NAME) if rank_spec is not None else joined_alone(NAME)
    with ExitStack() as entered:
        entered.enter_context(job)
        door = Door(limit_s=limit_s, job=job)
        entered.pop_all()  # from here on the door leaves it
    return door
