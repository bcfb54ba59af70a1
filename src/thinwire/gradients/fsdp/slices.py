"""What a unit's reduce-scatter has yet to deliver, by parameter's name: this rank's errors in all slices."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire.gradients.algorithms import RESIDUAL
from thinwire.gradients.memory import Memory, Residual


class Slices:
    """Error feedback over all n slices, [n, S], where S are the values of the parameters in use, concatenated.

    A unit reduces only the parameters that got a gradient, which may change from pass to pass. Memory of the other
    parameters is kept by name until they are used again. New memory counts once the whole backward pass proved finite
    (`commit`).
    """

    def __init__(self, sizes: Mapping[str, int], num_slices: int, *, remembers: bool, device: torch.device) -> None:
        self._sizes, self._num_slices = sizes, num_slices
        self._remembers, self._device = remembers, device
        self._resting: dict[str, Tensor] = {}  # [n, size of the parameter's slice]
        self._names: tuple[str, ...] = ()
        self._flat = Memory()
        self._pending = False

    def use(self, names: Sequence[str]) -> None:
        """Prepare to send gradients of these parameters."""
        if self._pending:  # the unit is reduced again in the same backward pass: what it sent before has been added up
            self.commit()
        if tuple(names) == self._names or not self._remembers:
            return
        self._rest()
        self._names = tuple(names)
        memories = [self._resting.pop(name) if name in self._resting else self._nothing(name) for name in names]
        self._flat = Residual(torch.cat(memories, dim=1).view(-1))

    def compensate(self, gradient: Tensor) -> Tensor:
        return self._flat.compensate(gradient)

    def sent(self, add: Callable[[Tensor], object]) -> None:
        self._flat.sent(add)
        self._pending = True

    def commit(self) -> None:
        if self._pending:
            self._flat.commit()
        self._pending = False

    def drop(self) -> None:
        self._pending = False

    def of(self, name: str) -> Tensor:
        """A copy of what is remembered of a parameter, [n, size]."""
        self._rest()
        return self._resting[name].clone() if name in self._resting else self._nothing(name)

    def put(self, name: str, kept: Tensor) -> None:
        self._rest()
        self._resting[name] = kept

    def clear(self) -> None:
        self._rest()
        self._resting.clear()

    def _rest(self) -> None:
        """Put the memory of the parameters in use back by name."""
        if self._names:
            kept = self._flat.tensors()[RESIDUAL].view(self._num_slices, -1)
            parts = kept.split([self._sizes[name] for name in self._names], dim=1)
            self._resting |= {name: part.clone() for name, part in zip(self._names, parts, strict=True)}
        self._names, self._flat, self._pending = (), Memory(), False

    def _nothing(self, name: str) -> Tensor:
        return torch.zeros(self._num_slices, self._sizes[name], dtype=torch.float32, device=self._device)
