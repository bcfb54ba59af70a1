"""A rank's own part of a pipeline: its module, and what it keeps of each micro-batch between forward and backward."""

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
    """A micro-batch between its forward and the end of its backward."""

    inputs: dict[str, Tensor]  # those that crossed
    outputs: dict[str, Tensor]  # those that cross, or the loss
    rest: split.Rest


@dataclass
class Stage:
    """Forward and backward of single micro-batches. `peak` is the most that it ever kept at a time."""

    module: nn.Module
    outgoing: Sequence[str]  # names of outputs that cross
    loss: Loss | None  # on the last stage
    splits: bool = False  # backward comes in two parts
    peak: int = 0
    activation_bytes: int = 0  # kept for the backward of one micro-batch, the first
    _kept: dict[int, Kept] = field(default_factory=dict)

    def forward(
        self,
        number: int,
        crossed: dict[str, Tensor],
        given: Mapping[str, Tensor],
        targets: Tensor | None,
        weight: float,
    ) -> dict[str, Tensor]:
        """What crosses, by name; on the last stage nothing but "loss", times `weight`. Inputs go in by name."""
        named = {**given, **crossed}
        saved, rest = _Saved(self.module), split.Rest()
        counted: Any = nullcontext() if self.activation_bytes else saved
        with counted, split.deferring(rest) if self.splits else nullcontext():
            # A single one goes by place: modules like nn.Sequential know no names.
            made = self.module(*named.values()) if len(named) == 1 else self.module(**named)
            if self.loss is not None:
                outputs = {"loss": self.loss(made, targets) * weight}
            else:
                outputs = {name: each.contiguous() for name, each in self._named(made).items()}
        self.activation_bytes = self.activation_bytes or saved.size_bytes
        self._kept[number] = Kept(crossed, outputs, rest)
        self.peak = max(self.peak, len(self._kept))
        return {name: each.detach() for name, each in outputs.items()}

    def needs_gradient(self, number: int, name: str) -> bool:
        return self._kept[number].outputs[name].requires_grad

    def backward(self, number: int, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Both parts; the inputs' gradients by name."""
        found = self.backward_input(number, gradients)
        self.backward_weight(number)
        return found

    def backward_input(self, number: int, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first part."""
        kept = self._kept[number]
        outputs, given = self._differentiable(kept, gradients)
        if outputs:
            torch.autograd.backward(outputs, given)
        found = {name: _or_zeros(each.grad, each) for name, each in kept.inputs.items() if each.requires_grad}
        for each in kept.inputs.values():
            each.grad = None
        kept.inputs, kept.outputs = {}, {}
        return found

    def backward_weight(self, number: int) -> None:
        """The second part."""
        self._kept.pop(number).rest.finish()

    def forget(self) -> None:
        self._kept.clear()

    def _named(self, made: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        if isinstance(made, Tensor):
            if len(self.outgoing) != 1:
                raise ValueError(
                    f"the stage returned one tensor, its edges are {list(self.outgoing)}; return a dict by these names"
                )
            return {self.outgoing[0]: made}
        missing = [name for name in self.outgoing if name not in made]
        if missing:
            raise ValueError(f"the stage returned {list(made)}, and no {missing[0]!r}, which has an edge")
        return {name: made[name] for name in self.outgoing}

    def _differentiable(self, kept: Kept, gradients: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs that require a gradient, and it. The loss's is 1."""
        names = [name for name, each in kept.outputs.items() if each.requires_grad]
        outputs = [kept.outputs[name] for name in names]
        given = [gradients[name] if self.loss is None else torch.ones_like(kept.outputs[name]) for name in names]
        return outputs, given


class _Saved(torch.autograd.graph.saved_tensors_hooks):
    """Adds up what autograd keeps in here, each storage once, and without the module's own weights."""

    def __init__(self, module: nn.Module) -> None:
        # Detached: an output that its own graph kept would never be freed.
        super().__init__(self._pack, lambda x: x)
        self._seen = {each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers())}
        self._kept: list[Tensor] = []  # so that no address comes twice
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
    """An input that nothing depends on has none, and the stage that made it waits for one."""
    return torch.zeros_like(x) if gradient is None else gradient.contiguous()
