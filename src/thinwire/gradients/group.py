"""A group's gradients on one rank: they are posted as one message and averaged, and what was lost is remembered.

Each way to exchange payloads is a class of its own, chosen by `primitives.make_group`:

    all_reduce.py  values are summed on the way (none, float16, bfloat16, randomk)
    all_gather.py  each rank's payload to all ranks: (n - 1) c bytes a rank
    two_step.py    slices to their owners, who add up, encode again and send to all: 2 (n - 1) / n c bytes
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs import seed_from
from thinwire.gradients.algorithms import Algorithm
from thinwire.gradients.memory import OWED, Memory, SliceDebt, State, by_name
from thinwire.links import Door


@dataclass(frozen=True)
class Parameters:
    """What a group sends in each step: the gradients of these parameters, concatenated, by this algorithm."""

    number: int  # of the group in its plan
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    algorithm: Algorithm
    door: Door
    device: torch.device
    seed: int

    @property
    def channel(self) -> str:
        return f"gradients.{self.number}"

    def seed_of(self, step: int, rank: int) -> int:
        return seed_from(self.seed, step, self.number, rank)


class Group(ABC):
    """A group of a plan on one rank: sends its gradients, receives their mean, remembers what the codec lost."""

    def __init__(self, parameters: Parameters, memory: Memory, slice_debt: SliceDebt | None = None) -> None:
        self._parameters, self._memory, self._slice_debt = parameters, memory, slice_debt
        self.number, self.names, self.sizes = parameters.number, parameters.names, parameters.sizes
        self.algorithm, self.device = parameters.algorithm, parameters.device
        self.scale = 1.0

    @abstractmethod
    def use_ratio(self, ratio: float) -> None:
        """Send this share of the values from now on: DGC's warm-up sends more at first."""

    @abstractmethod
    def post(self, gradient: Tensor, step: int, scale: float = 1.0) -> None:
        """Send this rank's flat gradient. `scale` is the loss scale; memory is without it."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for the messages of the other ranks."""

    @abstractmethod
    def finish(self, out: Tensor) -> bool:
        """Write the mean over ranks to `out`, the same bits on all ranks. False if some rank's was not finite."""

    @abstractmethod
    def time_codec(self, gradient: Tensor, total: Tensor, clock: Callable[[], float]) -> list[float]:
        """Seconds to encode, to add a payload, to decode one, without sending anything."""

    @property
    @abstractmethod
    def transfer_s(self) -> float:
        """Seconds that the messages of the last step took."""

    @property
    @abstractmethod
    def sent_bytes(self) -> float:
        """Bytes that this rank sends in a step, without the flags that say whether values were finite."""

    def keep(self, number: int) -> None:
        """No rank has used what was sent for this parameter, so its memory stays. To be called before `commit`."""
        begin = sum(self.sizes[:number])
        part = slice(begin, begin + self.sizes[number])
        self._memory.keep(part)
        if self._slice_debt is not None:
            self._slice_debt.keep(part)

    def commit(self) -> None:
        """The step counts: what the codec lost is remembered."""
        self._memory.commit()
        if self._slice_debt is not None:
            self._slice_debt.commit()

    def state(self) -> State:
        """What is remembered, by kind and parameter."""
        tensors = self._memory.tensors()
        if self._slice_debt is not None and (owed := self._slice_debt.whole(sum(self.sizes))) is not None:
            tensors = tensors | {OWED: owed}
        return by_name(tensors, self.names, self.sizes)
