"""The arguments of a layer beside its rows: the shard's edges, and values by edge."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from thinwire.graphs import Shard


class Unsupported(TypeError):
    """A layer, or a call of it, can't be distributed. The message names it and says why."""


@dataclass(frozen=True)
class Edges:
    """The arguments of a call: tensors with a row for each edge, and all others."""

    values: dict[str, Tensor] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def weight(self) -> Tensor | None:
        return self.values.get("edge_weight")

    @property
    def learned(self) -> bool:
        return any(value.requires_grad for value in self.values.values())


class Call:
    """Reads the arguments of a layer's forward by their names."""

    def __init__(self, name: str, forward: Callable[..., Any], shard: Shard) -> None:
        self._name = name
        self._signature = inspect.signature(forward)
        self._shard = shard

    def read(self, *arguments: Any, **named: Any) -> tuple[Tensor, Edges]:
        """The rows and the other arguments. `edge_index` must be the shard's own or None."""
        (_, x), *rest = self._signature.bind(*arguments, **named).arguments.items()
        if isinstance(x, tuple) and len(x) == 2 and x[0] is x[1]:
            x = x[0]
        if not isinstance(x, Tensor) or x.ndim != 2 or len(x) != self._shard.num_owned:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise Unsupported(
                f"{self._name}: x is {shape}; give one row for each of this shard's {self._shard.num_owned} nodes"
            )
        if x.dtype != torch.float32:
            raise Unsupported(f"{self._name}: x is {x.dtype}; give float32, for example x.float() once before the loop")
        values: dict[str, Tensor] = {}
        others: dict[str, Any] = {}
        for name, value in rest:
            if name == "edge_index":
                self._expect_own(value)
            elif isinstance(value, Tensor):
                values[name] = self._along(name, value)
            elif value is not None:
                others[name] = value
        for name in ("return_attention_weights", "size"):
            if name in others:
                raise Unsupported(f"{self._name}: {name} is not distributed; leave it out")
        return x, Edges(values, others)

    def _expect_own(self, edges: Any) -> None:
        if edges is not None and edges is not self._shard.edge_index:
            raise Unsupported(
                f"{self._name}: these are not the shard's edges; give shard.edge_index itself, or None. Edges that "
                "change while training (dropped, rewired) are not distributed"
            )

    def _along(self, name: str, value: Tensor) -> Tensor:
        count = len(self._shard.indices)
        if value.ndim == 0 or len(value) != count:
            raise Unsupported(
                f"{self._name}: {name} is {tuple(value.shape)}; a tensor must have a row for each of this shard's "
                f"{count} edges, as shard.edge_weight and shard.edge_attr have"
            )
        return value
