"""Rows of remote nodes, there and back: two autograd nodes, post and wait, with room for computation in between.

Forward, `post` sends the rows that others read and `wait` gives ours. Backward, the engine runs them the other way
round: `wait` posts the gradients of halo rows to their owners, what was computed in between is differentiated
meanwhile, and `post` adds what has come back to the rows it sent.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.codecs import Codec, Identity, seed_from
from thinwire.graphs import Shard
from thinwire.links import Door, Transfer


class Halo:
    """One place in a model where rows cross. Sizes are known from the shard: nothing describes itself on the wire."""

    def __init__(self, shard: Shard, door: Door, *, name: str, number: int, codec: Codec | None = None) -> None:
        self.shard = shard
        self.door = door
        self.name = name
        self.number = number  # of the place, counted through the model
        self.codec = codec or Identity()
        self.seed = 0
        self._forward: Transfer[list[Tensor]] | None = None
        self._backward: Transfer[list[Tensor]] | None = None
        self._kept: tuple[Tensor, int, Tensor] | None = None

    def post(self, x_ND: Tensor) -> Tensor:
        """Send; the token goes to `wait`."""
        token: Tensor = _Post.apply(x_ND, self)  # type: ignore[no-untyped-call]
        return token

    def wait(self, token: Tensor, width: int) -> Tensor:
        """Our halo rows, x_HD."""
        rows: Tensor = _Wait.apply(token, self, width)  # type: ignore[no-untyped-call]
        return rows

    def fetch(self, x_ND: Tensor) -> Tensor:
        """Halo rows of features that nobody trains: sent in full, once, and kept while x stays the same."""
        if self._kept is not None and self._kept[0] is x_ND and self._kept[1] == x_ND._version:
            return self._kept[2]
        exact = Halo(self.shard, self.door, name=self.name, number=self.number)
        exact.post_forward(x_ND)
        rows = exact.finish_forward(x_ND.shape[1])
        self._kept = (x_ND, x_ND._version, rows)
        return rows

    def post_forward(self, x_ND: Tensor) -> None:
        assert self._forward is None
        outgoing = x_ND.index_select(0, self.shard.send_rows).split(self.shard.send_to)
        sizes = self._sizes(self.shard.halo_from, x_ND.shape[1])
        self._forward = self.door.all_to_all(self._encode(outgoing, 0), sizes, channel=f"{self.name}.forward")

    def finish_forward(self, width: int) -> Tensor:
        assert self._forward is not None
        parts, self._forward = self._forward.wait(), None
        return self._decode(parts, self.shard.halo_from, width)

    def post_backward(self, grad_HD: Tensor) -> None:
        assert self._backward is None
        outgoing = grad_HD.split(self.shard.halo_from)
        sizes = self._sizes(self.shard.send_to, grad_HD.shape[1])
        self._backward = self.door.all_to_all(self._encode(outgoing, 1), sizes, channel=f"{self.name}.backward")

    def finish_backward(self, width: int) -> Tensor:
        assert self._backward is not None
        parts, self._backward = self._backward.wait(), None
        return self._decode(parts, self.shard.send_to, width)

    def _encode(self, rows: Sequence[Tensor], direction: int) -> list[Tensor]:
        me = self.shard.part
        return [
            self.codec.encode(part.contiguous(), seed=seed_from(self.seed, self.number, direction, me, peer))
            for peer, part in enumerate(rows)
        ]

    def _decode(self, parts: Sequence[Tensor], counts: Sequence[int], width: int) -> Tensor:
        return torch.cat([self.codec.decode(data, (rows, width)) for data, rows in zip(parts, counts, strict=True)])

    def _sizes(self, counts: Sequence[int], width: int) -> list[int]:
        return [self.codec.nbytes((rows, width)) for rows in counts]


class _Post(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x_ND: Tensor, halo: Halo) -> Tensor:
        ctx.halo, ctx.shape = halo, x_ND.shape  # type: ignore[attr-defined]
        halo.post_forward(x_ND)
        return x_ND.new_empty(0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *_: Tensor) -> tuple[Tensor, None]:
        halo, shape = ctx.halo, ctx.shape  # type: ignore[attr-defined]
        rows = halo.finish_backward(shape[1])
        return rows.new_zeros(shape).index_add_(0, halo.shard.send_rows, rows), None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, token: Tensor, halo: Halo, width: int) -> Tensor:
        ctx.halo = halo  # type: ignore[attr-defined]
        return halo.finish_forward(width)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.halo.post_backward(grads[0])  # type: ignore[attr-defined]
        return grads[0].new_empty(0), None, None
