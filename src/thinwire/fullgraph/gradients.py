"""Gradients of shared weights: summed over ranks by one fused all-reduce, at the end of every backward pass."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.variable import Variable

from thinwire.links import Door


class GradientSum:
    """Hooks that make `loss.backward()` leave the whole graph's gradients on every rank."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], door: Door) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._door = door
        self._queued = False
        if door.world_size > 1:
            for parameter in self._parameters:
                parameter.register_hook(self._on_gradient)

    def _on_gradient(self, gradient: Tensor) -> None:
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._sum)

    def _sum(self) -> None:
        self._queued = False
        # A weight that this rank's nodes do not reach still has its place in the sum.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._door.all_reduce(flat, channel="gradients").wait()
        for parameter, part in zip(self._parameters, flat.split([p.numel() for p in self._parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
