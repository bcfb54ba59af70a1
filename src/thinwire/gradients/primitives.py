"""The class of a group, by its codec and by the primitive that exchanges its payloads."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.gradients.algorithms import ALL_GATHER, DENSE, NONE, TWO_STEP, Algorithm
from thinwire.gradients.all_gather import AllGather
from thinwire.gradients.all_reduce import AllReduce, Dense
from thinwire.gradients.group import Group, Parameters
from thinwire.gradients.layout import slices_of
from thinwire.gradients.memory import OWED, SliceDebt, flat_of, memory_for
from thinwire.gradients.two_step import TwoStep
from thinwire.links import Door


def make_group(
    number: int,
    names: Sequence[str],
    sizes: Sequence[int],
    algorithm: Algorithm,
    primitive: str,
    door: Door,
    *,
    device: torch.device,
    seed: int = 0,
    momentum: float = 0.9,
    state: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> Group:
    """A group of a plan. `state` is the saved memory of one or more groups."""
    parameters = Parameters(number, tuple(names), tuple(sizes), algorithm, door, device, seed)
    dense = algorithm.spec in (NONE, *DENSE)
    if not dense and not algorithm.memory:
        state = {}  # without feedback, losses are not made up for
    state = state or {}
    # Groups may have changed since the state was saved. What now lies in another rank's slice is remembered as if this
    # rank's first encoding had lost it: the mean is the same.
    owed = flat_of(state.get(OWED, {}), names, sizes, device)
    slices, debt = [list(sizes)], None
    if primitive == TWO_STEP:
        slices = slices_of(sizes, door.world_size)
        begin = sum(map(sum, slices[: door.rank]))
        debt = SliceDebt(slice(begin, begin + sum(slices[door.rank])))
        if OWED in state:
            debt.take_from(owed)
    memory = memory_for(algorithm.memory, names, sizes, state, momentum, device, owed)
    if dense:
        return Dense(parameters, memory)
    if primitive == TWO_STEP:
        return TwoStep(parameters, memory, slices, debt)
    return (AllGather if primitive == ALL_GATHER else AllReduce)(parameters, memory, slices)
