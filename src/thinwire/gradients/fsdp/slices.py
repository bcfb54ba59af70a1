"""What a unit's reduce-scatter has yet to deliver, by parameter's name: this rank's errors against every slice."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire.gradients.algorithms import RESIDUAL
from thinwire.gradients.memory import Memory, Residual


class Slices:
    """Error feedback over n slices at a time, [n, S]; S are the values of the parameters in use, one after the other.

    Units reduce what got a gradient, another set of parameters each time if they like. What is remembered of the
    others waits for its turn. What a step has left counts once the whole backward pass was finite (`commit`).
    """

    def __init__(self, sizes: Mapping[str, int], num_slices: int, *, remembers: bool, device: torch.device) -> None:
        self._sizes, self._num_slices = sizes, num_slices
        self._remembers, self._device = remembers, device
        self._resting: dict[str, Tensor] = {}  # [n, size of the parameter's slice]
        self._names: tuple[str, ...] = ()
        self._flat = Memory()
        self._pending = False

    def use(self, names: Sequence[str]) -> None:
        """From now on gradients of these parameters are sent."""
        if self._pending:  # the same unit once more in one backward pass: what it sent before has been added up
            self.commit()
        if tuple(names) == self._names or not self._remembers:
            return
        self._rest()
        self._names = tuple(names)
        own = [self._resting.pop(name) if name in self._resting else self._nothing(name) for name in names]
        self._flat = Residual(torch.cat(own, dim=1).view(-1))

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
        """[n, size], a copy."""
        self._rest()
        return self._resting[name].clone() if name in self._resting else self._nothing(name)

    def put(self, name: str, kept: Tensor) -> None:
        self._rest()
        self._resting[name] = kept

    def clear(self) -> None:
        self._rest()
        self._resting.clear()

    def _rest(self) -> None:
        if self._names:
            kept = self._flat.tensors()[RESIDUAL].view(self._num_slices, -1)
            parts = kept.split([self._sizes[name] for name in self._names], dim=1)
            self._resting |= {name: part.clone() for name, part in zip(self._names, parts, strict=True)}
        self._names, self._flat, self._pending = (), Memory(), False

    def _nothing(self, name: str) -> Tensor:
        return torch.zeros(self._num_slices, self._sizes[name], dtype=torch.float32, device=self._device)
