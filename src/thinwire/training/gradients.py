"""Gradients of shared weights: summed over ranks by one fused all-reduce, at the end of every backward pass."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd.variable import Variable

from thinwire.links import Door


class GradientSum:
    """Hooks that make `loss.backward()` leave the whole graph's gradients on every rank; then `after` is called."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], door: Door, after: Callable[[], None] = lambda: None
    ) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._door = door
        self._after = after
        self._before: list[Tensor | None] | None = None  # what was there when this pass began
        if door.world_size > 1:
            for parameter in self._parameters:
                parameter.register_hook(self._on_gradient)

    def _on_gradient(self, gradient: Tensor) -> None:
        if self._before is None:
            # Set aside: it has been summed already, and several passes may add up before a step.
            self._before = [parameter.grad for parameter in self._parameters]
            for parameter in self._parameters:
                parameter.grad = None
            Variable._execution_engine.queue_callback(self._sum)

    def _sum(self) -> None:
        before, self._before = self._before or [], None
        # A weight that this rank's nodes do not reach has its place in the sum; one that nobody's do gets no gradient.
        own = [parameter.grad for parameter in self._parameters]
        reached = [float(gradient is not None) for gradient in own]
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(self._parameters, own, strict=True)]
        flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_tensor(reached)])
        self._door.all_reduce(flat, channel="gradients").wait()
        *sums, reached_by = flat.split([*(p.numel() for p in self._parameters), len(reached)])
        for parameter, total, old, count in zip(self._parameters, sums, before, reached_by.tolist(), strict=True):
            new = total.view_as(parameter) if count else None
            parameter.grad = new if old is None else old if new is None else old + new
        self._after()


def bytes_of(parameters: Iterable[torch.nn.Parameter], world_size: int) -> int:
    """What one such sum sends from each rank: a ring's two rounds, and whether each weight was reached."""
    sizes = [parameter.numel() for parameter in parameters if parameter.requires_grad]
    return math.ceil(2 * (world_size - 1) / world_size * 4 * (sum(sizes) + len(sizes)))
