"""Dropout whose mask depends on the node: on seed, epoch, place in the model and the node's number in the whole graph.

So a run drops the same values at any number of ranks. The backward pass computes the mask again instead of storing it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.codecs import seed_from
from thinwire.codecs.kernels import kernels_for
from thinwire.fullgraph.clock import Clock
from thinwire.graphs import Shard

# Makes these seeds differ from those of messages.
DROPOUT = 2


# The attribute of a tensor that dropout has made.
NAME = "thinwire_drop"


@dataclass(frozen=True)
class Drop:
    """What a dropout did to its rows. Nodes elsewhere can be dropped in the same way."""

    source: Tensor  # the rows before dropout
    keep: float
    seed: int

    def __call__(self, rows: Tensor, ids: Tensor) -> Tensor:
        """These rows, which belong to the nodes `ids` of the whole graph, after the same dropout."""
        return _drop(rows, ids, self.keep, self.seed)


def mark(out: Tensor, drop: Drop) -> None:
    """Note on a tensor which dropout has made it."""
    setattr(out, NAME, (drop, out._version, drop.source._version))


def drop_of(x: Tensor) -> Drop | None:
    """The dropout that made this tensor, if nothing has written to it or to its source since."""
    marked: tuple[Drop, int, int] | None = getattr(x, NAME, None)
    if marked is None:
        return None
    drop, *versions = marked
    return drop if versions == [x._version, drop.source._version] else None


class NodeDropout:
    """The forward of an nn.Dropout on a shard's rows. Others (edges, one vector) take the module's own forward."""

    def __init__(self, dropout: nn.Dropout, shard: Shard, clock: Clock, number: int) -> None:
        self._dropout = dropout
        self._plain_forward = dropout.forward
        self._ids = shard.original_ids
        self._clock = clock
        self._number = number
        self.calls = 0  # in this pass

    def __call__(self, x: Tensor) -> Tensor:
        p = self._dropout.p
        if not self._dropout.training or p == 0:
            return x
        if p == 1 or x.ndim < 2 or len(x) != len(self._ids) or x.dtype != torch.float32:
            return self._plain_forward(x)
        seed = seed_from(*self._clock.seed, self._number, DROPOUT, self.calls)
        self.calls += 1
        out: Tensor = _Drop.apply(x, self._ids, 1 - p, seed)  # type: ignore[no-untyped-call]
        if x.ndim == 2:
            mark(out, Drop(x.detach(), 1 - p, seed))
        return out


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, ids: Tensor, keep: float, seed: int) -> Tensor:
        ctx.mask = (ids, keep, seed)  # type: ignore[attr-defined]
        return _drop(x, ids, keep, seed)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _drop(grads[0], *ctx.mask), None, None, None  # type: ignore[attr-defined]


def _drop(x: Tensor, ids: Tensor, keep: float, seed: int) -> Tensor:
    rows = x.detach().reshape(len(x), -1).contiguous()
    out = torch.empty_like(rows)
    kernels_for(rows).drop_rows(rows, ids.to(rows.device), keep, seed, out)
    return out.view_as(x)
