"""One rank's part by itself, with a door that leads nowhere: what it holds while it adds up."""

import weakref
from typing import Any

import torch
from torch import Tensor

from thinwire.crossmesh.layout import Layout
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import plan
from thinwire.crossmesh.roles import Roles

RANKS = tuple(range(16))


class Arrived:
    def __init__(self, data: Tensor) -> None:
        self.data = data

    def wait(self, *, behind: bool) -> Tensor:
        return self.data


class Nowhere:
    """Whatever is received has come at once: ones, times the sender's rank. Counts the buffers still alive."""

    rank = 3

    def __init__(self) -> None:
        self.buffers: list[weakref.ref[Tensor]] = []
        self.most_bytes = 0

    def relay(self, data: Tensor, source: int | None, heirs: list[int], **_: Any) -> Arrived:
        if source is not None:
            data.fill_(source)
            self.buffers.append(weakref.ref(data))
            alive = [buffer for reference in self.buffers if (buffer := reference()) is not None]
            self.most_bytes = max(self.most_bytes, sum(buffer.nbytes for buffer in alive))
        return Arrived(data)


def test_a_sum_of_many_ranks_holds_two_parts_at_a_time() -> None:
    size = 16_000
    placements = [Layout((len(RANKS),), RANKS, (word,), (size,)) for word in ("P", "S0")]
    made = plan(*placements, itemsize=4, network=Network.even([0] * len(RANKS)))
    door, local = Nowhere(), torch.full((size,), float(Nowhere.rank))
    sums = [reduction for reduction in made.reductions if reduction.at == door.rank]
    assert sums
    roles = Roles(
        made,
        {0: local},
        door,  # type: ignore[arg-type]
        dtypes=[torch.float32],
        channels=["x"],
        key="",
        repeat=0,
        seed=0,
        device=None,
        known={},
        held={},
    )
    for role in roles.all()[: len(made.reductions)]:  # sums come first
        role()
    assert len(door.buffers) == len(sums) * (len(RANKS) - 1)
    assert door.most_bytes <= 2 * max(reduction.size_bytes for reduction in sums)
    for reduction in sums:
        (((first, end),),) = reduction.region
        assert roles._summed[0][first:end].tolist() == [float(sum(RANKS))] * (end - first)
    assert local.tolist() == [float(Nowhere.rank)] * size  # only read
