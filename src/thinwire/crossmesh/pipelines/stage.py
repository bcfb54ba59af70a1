"""A rank's part of a pipeline: its module, and what it keeps of each micro-batch between forward and backward."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.crossmesh.pipelines import split

Loss = Callable[..., Tensor]


@dataclass
class Kept:
    """What is kept of a micro-batch from its forward to the end of its backward."""

    inputs: dict[str, Tensor]  # those that came over edges
    outputs: dict[str, Tensor]  # those that go over edges, or the loss
    rest: split.Rest


@dataclass
class Stage:
    """Forward and backward of single micro-batches. `peak` is the most micro-batches kept at the same time so far."""

    module: nn.Module
    outgoing: Sequence[str]  # names of outputs that go over edges
    loss: Loss | None  # on the last stage
    splits: bool = False  # backward comes in two parts
    peak: int = 0
    activation_bytes: int = 0  # kept for the backward of one micro-batch, measured on the first
    _kept: dict[int, Kept] = field(default_factory=dict)

    def forward(
        self,
        number: int,
        crossed: dict[str, Tensor],
        inputs: Mapping[str, Tensor],
        targets: Tensor | None,
        weight: float,
    ) -> dict[str, Tensor]:
        """The outputs by name; on the last stage only "loss", times `weight`. Inputs are passed by name."""
        named = {**inputs, **crossed}
        saved, rest = _Saved(self.module), split.Rest()
        counted: Any = nullcontext() if self.activation_bytes else saved
        with counted, split.deferring(rest) if self.splits else nullcontext():
            # A single input is passed by position: modules like nn.Sequential take no names.
            returned = self.module(*named.values()) if len(named) == 1 else self.module(**named)
            if self.loss is not None:
                outputs = {"loss": self.loss(returned, targets) * weight}
            else:
                outputs = {name: x.contiguous() for name, x in self._named(returned).items()}
        self.activation_bytes = self.activation_bytes or saved.size_bytes
        self._kept[number] = Kept(crossed, outputs, rest)
        self.peak = max(self.peak, len(self._kept))
        return {name: x.detach() for name, x in outputs.items()}

    def needs_gradient(self, number: int, name: str) -> bool:
        return self._kept[number].outputs[name].requires_grad

    def backward(self, number: int, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Both parts of the backward. Returns the inputs' gradients by name."""
        input_gradients = self.backward_input(number, gradients)
        self.backward_weight(number)
        return input_gradients

    def backward_input(self, number: int, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first part. Returns the inputs' gradients by name."""
        kept = self._kept[number]
        outputs, output_gradients = self._differentiable(kept, gradients)
        if outputs:
            torch.autograd.backward(outputs, output_gradients)
        input_gradients = {name: _or_zeros(x.grad, x) for name, x in kept.inputs.items() if x.requires_grad}
        for x in kept.inputs.values():
            x.grad = None
        kept.inputs, kept.outputs = {}, {}
        return input_gradients

    def backward_weight(self, number: int) -> None:
        """The second part: the weights' gradients."""
        self._kept.pop(number).rest.finish()

    def forget(self) -> None:
        self._kept.clear()

    def _named(self, returned: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        if isinstance(returned, Tensor):
            if len(self.outgoing) != 1:
                raise ValueError(
                    f"the stage returned one tensor, its edges are {list(self.outgoing)}; return a dict by these names"
                )
            return {self.outgoing[0]: returned}
        missing = [name for name in self.outgoing if name not in returned]
        if missing:
            raise ValueError(f"the stage returned {list(returned)}, and no {missing[0]!r}, which has an edge")
        return {name: returned[name] for name in self.outgoing}

    def _differentiable(self, kept: Kept, gradients: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs that require a gradient, and these gradients. That of the loss is 1."""
        names = [name for name, x in kept.outputs.items() if x.requires_grad]
        outputs = [kept.outputs[name] for name in names]
        output_gradients = [
            gradients[name] if self.loss is None else torch.ones_like(kept.outputs[name]) for name in names
        ]
        return outputs, output_gradients


class _Saved(torch.autograd.graph.saved_tensors_hooks):
    """Adds up the bytes that autograd keeps inside it, each storage once, without the module's weights."""

    def __init__(self, module: nn.Module) -> None:
        # `_pack` detaches: an output kept by its own graph would never be freed.
        super().__init__(self._pack, lambda x: x)
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
        self._kept: list[Tensor] = []  # kept alive, so that no address is used again
        self.size_bytes = 0

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._kept.clear()

    def _pack(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._kept.append(x.detach())
            self.size_bytes += storage.nbytes()
        return x.detach()


def _or_zeros(gradient: Tensor | None, x: Tensor) -> Tensor:
    """The gradient, or zeros: an input that nothing depends on has none, but the stage that made it waits for one."""
    return torch.zeros_like(x) if gradient is None else gradient.contiguous()
