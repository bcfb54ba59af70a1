"""The halo exchange of a layer as two autograd nodes, post and wait, with computation in between.

Forward, `post` sends the rows that other ranks read, and `wait` returns our halo rows. Backward, autograd runs them in
reverse order: `wait` sends the gradients of halo rows to their owners, the computation in between is differentiated
meanwhile, and `post` adds the gradients it receives to the rows it sent.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.codecs import Identity
from thinwire.fullgraph.aggregate import Adjacency
from thinwire.fullgraph.clock import Clock
from thinwire.fullgraph.wire import Codecs, Wire
from thinwire.graphs import Shard
from thinwire.links import Door


class Halo:
    """One place in a model where halo rows are exchanged. Sizes are known from the shard, so none are sent."""

    def __init__(self, shard: Shard, door: Door, clock: Clock, *, name: str, number: int) -> None:
        self.shard = shard
        self.door = door
        self.clock = clock
        self.number = number  # of the place, counted through the model
        codec, keeps = clock.method.codec(), clock.method.keeps_rows
        self.forward = Wire(door, f"{name}.forward", shard.send_to, shard.halo_from, codec, keeps=keeps)
        self.backward = Wire(door, f"{name}.backward", shard.halo_from, shard.send_to, codec, keeps=keeps)
        # Wires of their own, so that an evaluation between epochs does not touch the stale rows.
        self._exact = Wire(door, f"{name}.exact", shard.send_to, shard.halo_from, Identity())
        self._exact_back = Wire(door, f"{name}.exact-back", shard.halo_from, shard.send_to, Identity())
        self.forward.trace, self.backward.trace = clock.method.trace(), clock.method.trace()
        self.reads: Adjacency | None = None  # the matrix from halo rows to our rows, if it is fixed
        self.training = True  # whether this pass is in training mode
        self._kept: tuple[Tensor, int, object, Tensor] | None = None

    def wires(self) -> tuple[Wire, Wire]:
        """The wires that carry the method's messages: forward and backward."""
        return self.forward, self.backward

    def post(self, x_ND: Tensor) -> Tensor:
        """Send the rows that other ranks read. Returns a token for `wait`."""
        token: Tensor = _Post.apply(x_ND, self)  # type: ignore[no-untyped-call]
        return token

    def wait(self, token: Tensor) -> Tensor:
        """Wait for our halo rows, x_HD."""
        rows: Tensor = _Wait.apply(token, self)  # type: ignore[no-untyped-call]
        return rows

    @property
    def counts_by_gradient(self) -> bool:
        """Whether a traced row is weighted by its gradient; else by the matrix that reads it."""
        trace = self.forward.trace
        return self.reads is None or (trace is not None and trace.counts_by_gradient)

    def travels(self, x_ND: Tensor) -> bool:
        """Whether these rows and their gradients go by `post` and `wait`; else the rows are fetched in float32."""
        return x_ND.requires_grad and self.door.world_size > 1

    def in_use(self) -> "InUse":
        """The wires of a pass that begins now. In evaluation mode they are exact."""
        if self.training:
            return InUse(self.forward, self.backward, self.clock.stale)
        return InUse(self._exact, self._exact_back, False)

    def codecs(self, wire: Wire) -> Codecs:
        """The codecs of this wire in this pass."""
        drawn = self.clock.drawn
        if drawn is not None and wire in self.wires():
            return drawn if wire is self.forward else drawn.back
        return wire.full_codecs if self.clock.method.sends_all(self.clock.epoch) else wire.codecs

    def is_features(self, x_ND: Tensor) -> bool:
        """Whether no weights come before these rows. Their halo is fetched once, so their width does not matter."""
        return self._has(x_ND) or (self.training and not x_ND.requires_grad)

    def once(self, x_ND: Tensor, make: Callable[[], Tensor], by: object = None) -> Tensor:
        """`make()`, for rows without gradients. For features it is kept as long as x_ND and `by` are the same."""
        if self._kept is not None and self._has(x_ND) and self._kept[2] is by:
            return self._kept[3]
        result = make()
        if self.is_features(x_ND):
            if self._kept is not None and not self._has(x_ND):
                _warn_of_new_features(self._exact.channel.removesuffix(".exact"))
            self._kept = (x_ND, x_ND._version, by, result)
        return result

    def ask(self, x_ND: Tensor) -> Tensor:
        """Fetch our halo rows from their owners, in float32. Waits."""
        if self.door.world_size == 1:
            return x_ND.new_empty((0, x_ND.shape[1]))
        self._exact.post(x_ND.detach().index_select(0, self.shard.send_rows), self._exact.codecs, (0,))
        return self._exact.finish(stale=False)

    def most(self, counts: Tensor) -> int:
        """The largest count on any rank."""
        largest = counts.max() if len(counts) else counts.new_zeros(())
        return int(self.door.gather(largest, channel=self._exact.channel).max())

    def _has(self, x_ND: Tensor) -> bool:
        return self._kept is not None and self._kept[0] is x_ND and self._kept[1] == x_ND._version


@cache
def _warn_of_new_features(layer: str) -> None:
    warnings.warn(
        f"{layer}: its input features are a new tensor in each epoch, so their halo crosses the wire in float32 each "
        "time. Make x once, before the loop; dropout on features costs this too, and so do frozen layers before it",
        RuntimeWarning,
        stacklevel=2,
    )


class InUse(NamedTuple):
    """The wires that a pass uses, and whether it takes the last epoch's rows from them."""

    forward: Wire
    backward: Wire
    stale: bool


class _Post(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x_ND: Tensor, halo: Halo) -> Tensor:
        ctx.halo, ctx.shape, ctx.in_use = halo, x_ND.shape, halo.in_use()  # type: ignore[attr-defined]
        halo.clock.lowest = halo.clock.lowest or halo
        _send(halo, ctx.in_use.forward, x_ND.index_select(0, halo.shard.send_rows), 0)  # type: ignore[attr-defined]
        return x_ND.new_empty(0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *_: Tensor) -> tuple[Tensor, None]:
        halo, shape = ctx.halo, ctx.shape  # type: ignore[attr-defined]
        in_use: InUse = ctx.in_use  # type: ignore[attr-defined]
        rows = in_use.backward.finish(stale=in_use.stale)
        trace = in_use.forward.trace
        if trace is not None and halo.counts_by_gradient:
            trace.came_back(rows, halo.clock.epoch)
        return rows.new_zeros(shape).index_add_(0, halo.shard.send_rows, rows), None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, token: Tensor, halo: Halo) -> Tensor:
        in_use = halo.in_use()
        ctx.halo, ctx.in_use = halo, in_use  # type: ignore[attr-defined]
        return in_use.forward.finish(stale=in_use.stale)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        halo: Halo = ctx.halo  # type: ignore[attr-defined]
        in_use: InUse = ctx.in_use  # type: ignore[attr-defined]
        # Stale gradients are not needed before the next epoch. No computation hides the last message of a pass, so it
        # waits until the weights' gradients are sent: all ranks wait for those.
        _send(halo, in_use.backward, grads[0], 1, hold=in_use.stale and halo is halo.clock.lowest)
        return grads[0].new_empty(0), None


def _send(halo: Halo, wire: Wire, rows: Tensor, direction: int, *, hold: bool = False) -> None:
    clock = halo.clock
    if wire.trace is not None:
        wire.trace.going(rows, clock.epoch)
    wire.post(rows, halo.codecs(wire), (*clock.seed, halo.number, direction), hold=hold)
    if not clock.method.overlaps:
        wire.arrive()
