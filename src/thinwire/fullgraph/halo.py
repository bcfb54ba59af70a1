"""Rows of remote nodes, there and back: two autograd nodes, post and wait, with room for computation in between.

Forward, `post` sends the rows that others read and `wait` gives ours. Backward, the engine runs them the other way
round: `wait` posts the gradients of halo rows to their owners, what was computed in between is differentiated
meanwhile, and `post` adds what has come back to the rows it sent.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from thinwire.codecs import Codec, Identity, kernels, seed_from
from thinwire.fullgraph.clock import Clock
from thinwire.graphs import Shard
from thinwire.links import Door, Transfer


class NotFinite(ValueError):
    """A message with infinity or NaN in it, named by layer, rank and epoch. It is not sent."""


class _Message:
    """Encoded rows to everybody, and room for theirs; on its way once it is started."""

    def __init__(
        self, door: Door, channel: str, parts: list[Tensor], sizes: list[int], codec: Codec, width: int
    ) -> None:
        self._start = partial(door.all_to_all, parts, sizes, channel=channel)
        self._transfer: Transfer[list[Tensor]] | None = None
        self.codec = codec
        self.width = width

    def start(self) -> Transfer[list[Tensor]]:
        if self._transfer is None:
            self._transfer = self._start()
            del self._start  # with the encoded rows: the transfer keeps what it still needs
        return self._transfer


class Wire:
    """One direction at one place: rows out, rows in, by a codec. Stale, it hands out what was sent an epoch ago."""

    def __init__(
        self, door: Door, channel: str, send_to: Sequence[int], receive_from: Sequence[int], *, keeps: bool
    ) -> None:
        self._door = door
        self.channel = channel
        self._send_to = list(send_to)
        self._receive_from = list(receive_from)
        self._posted: _Message | None = None  # this epoch's
        self._flying: _Message | None = None  # the last epoch's, not yet looked at
        self._keeps = keeps  # whether an epoch may be stale
        self.held: Tensor | None = None  # what was last received
        self.values_sent = 0

    def post(self, rows: Tensor, codec: Codec, seed: tuple[int, ...], *, hold: bool = False) -> None:
        """Send; or, held, have it ready for `release`."""
        if self._posted is not None:
            raise RuntimeError(
                f"{self.channel}: a pass began before the last one's backward was over; call backward() once for each "
                "pass in training, in turn"
            )
        me = self._door.rank
        self.values_sent += rows.numel()
        try:
            outgoing = [
                codec.encode(part.contiguous(), seed=seed_from(*seed, me, peer))
                for peer, part in enumerate(rows.split(self._send_to))
            ]
        except ValueError as error:
            if bool(torch.isfinite(rows).all()):
                raise
            raise NotFinite(
                f"{self.channel}: rank {me}'s message can't be sent in epoch {self._door.step + 1}: {error}. Training "
                "has diverged: try a lower learning rate or, for sylvie, more bits"
            ) from None
        sizes = [codec.nbytes((count, rows.shape[1])) for count in self._receive_from]
        self._posted = _Message(self._door, self.channel, outgoing, sizes, codec, rows.shape[1])
        if not hold:
            self._posted.start()

    def finish(self, *, stale: bool) -> Tensor:
        """This epoch's rows; or, stale, those that were sent an epoch ago, while this epoch's are under way."""
        posted, self._posted = self._posted, None
        assert posted is not None
        self.settle()  # before a synchronous epoch as well: messages are taken in order
        if stale and self.held is not None:
            self._flying = posted
            return self.held
        received = self._received(posted)
        self.held = received if self._keeps else None
        return received

    def settle(self) -> None:
        """Take in what is still under way: `held` is then all that the next epochs need."""
        if self._flying is not None:
            self.held = self._received(self._flying)
            self._flying = None

    def release(self) -> None:
        """Let go what was held."""
        if self._flying is not None:
            self._flying.start()

    def _received(self, message: _Message) -> Tensor:
        received = message.start().wait()
        shape = (sum(self._receive_from), message.width)
        rows = kernels.empty(shape, torch.float32, received[0].device)
        for data, part in zip(received, rows.split(self._receive_from), strict=True):
            message.codec.decode(data, part.shape, out=part)
        return rows


class Halo:
    """One place in a model where rows cross. Sizes are known from the shard: nothing describes itself on the wire."""

    def __init__(self, shard: Shard, door: Door, clock: Clock, *, name: str, number: int) -> None:
        self.shard = shard
        self.door = door
        self.clock = clock
        self.number = number  # of the place, counted through the model
        keeps = clock.plan.may_be_stale
        self.forward = Wire(door, f"{name}.forward", shard.send_to, shard.halo_from, keeps=keeps)
        self.backward = Wire(door, f"{name}.backward", shard.halo_from, shard.send_to, keeps=keeps)
        # Apart from those, so that a look in between leaves stale rows alone.
        self._exact = Wire(door, f"{name}.exact", shard.send_to, shard.halo_from, keeps=False)
        self._exact_back = Wire(door, f"{name}.exact-back", shard.halo_from, shard.send_to, keeps=False)
        self.training = True  # whether this pass is
        self._kept: tuple[Tensor, int, object, Tensor] | None = None

    def post(self, x_ND: Tensor) -> Tensor:
        """Send; the token goes to `wait`."""
        token: Tensor = _Post.apply(x_ND, self)  # type: ignore[no-untyped-call]
        return token

    def wait(self, token: Tensor) -> Tensor:
        """Our halo rows, x_HD."""
        rows: Tensor = _Wait.apply(token, self)  # type: ignore[no-untyped-call]
        return rows

    def take_values_sent(self) -> int:
        """Values that the method sent since the last call: 4 bytes each they would have been in float32."""
        sent = self.forward.values_sent + self.backward.values_sent
        self.forward.values_sent = self.backward.values_sent = 0
        return sent

    def travels(self, x_ND: Tensor) -> bool:
        """Whether these rows go by the method's way, there and back; else they are fetched in full."""
        return x_ND.requires_grad and self.door.world_size > 1

    def way(self) -> tuple[Wire, Wire, Codec, bool]:
        """There, back, by which codec, and whether stale; exact where gradients are asked for outside training."""
        if self.training:
            return self.forward, self.backward, self.clock.codec, self.clock.stale
        return self._exact, self._exact_back, Identity(), False

    def is_features(self, x_ND: Tensor) -> bool:
        """Whether these rows come before all weights: they are fetched once, so that their width does not matter."""
        return self._has(x_ND) or (self.training and not x_ND.requires_grad)

    def once(self, x_ND: Tensor, make: Callable[[], Tensor], by: object = None) -> Tensor:
        """What `by` makes of rows that do not travel: of features once, and kept while they stay the same."""
        if self._kept is not None and self._has(x_ND) and self._kept[2] is by:
            return self._kept[3]
        made = make()
        if self.is_features(x_ND):
            if self._kept is not None and not self._has(x_ND):
                _warn_of_new_features(self._exact.channel.removesuffix(".exact"))
            self._kept = (x_ND, x_ND._version, by, made)
        return made

    def ask(self, x_ND: Tensor) -> Tensor:
        """What the owners have for our halo rows, float32, now."""
        if self.door.world_size == 1:
            return x_ND.new_empty((0, x_ND.shape[1]))
        self._exact.post(x_ND.detach().index_select(0, self.shard.send_rows), Identity(), (0,))
        return self._exact.finish(stale=False)

    def _has(self, x_ND: Tensor) -> bool:
        return self._kept is not None and self._kept[0] is x_ND and self._kept[1] == x_ND._version


@cache
def _warn_of_new_features(layer: str) -> None:
    warnings.warn(
        f"{layer}: its input features are a new tensor in each epoch, so their halo crosses the wire in float32 each "
        "time. Make x once, before the loop; dropout on features costs this too",
        RuntimeWarning,
        stacklevel=2,
    )


class _Post(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x_ND: Tensor, halo: Halo) -> Tensor:
        ctx.halo, ctx.shape, ctx.way = halo, x_ND.shape, halo.way()  # type: ignore[attr-defined]
        there, _, codec, _ = ctx.way  # type: ignore[attr-defined]
        halo.clock.lowest = halo.clock.lowest or halo
        there.post(x_ND.index_select(0, halo.shard.send_rows), codec, (*halo.clock.seed, halo.number, 0))
        return x_ND.new_empty(0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *_: Tensor) -> tuple[Tensor, None]:
        halo, shape = ctx.halo, ctx.shape  # type: ignore[attr-defined]
        _, back, _, stale = ctx.way  # type: ignore[attr-defined]
        rows = back.finish(stale=stale)
        return rows.new_zeros(shape).index_add_(0, halo.shard.send_rows, rows), None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, token: Tensor, halo: Halo) -> Tensor:
        ctx.halo, ctx.way = halo, halo.way()  # type: ignore[attr-defined]
        there, _, _, stale = ctx.way  # type: ignore[attr-defined]
        return there.finish(stale=stale)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        halo: Halo = ctx.halo  # type: ignore[attr-defined]
        _, back, codec, stale = ctx.way  # type: ignore[attr-defined]
        # A stale one is not needed before the next epoch. The last of a pass, which no computation hides any more, lets
        # the weights' gradients go first, which everybody waits for.
        hold = stale and halo is halo.clock.lowest
        back.post(grads[0], codec, (*halo.clock.seed, halo.number, 1), hold=hold)
        return grads[0].new_empty(0), None
