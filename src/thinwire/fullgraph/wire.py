"""One direction at one place of a model: rows out to readers, rows in from owners, a codec for each peer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from thinwire.codecs import Codec, kernels, seed_from
from thinwire.fullgraph.trace import Trace
from thinwire.links import Door, Transfer
from thinwire.training.finite import NotFinite


@dataclass(frozen=True)
class Codecs:
    """By which rows go out to each peer, and come in from each."""

    out: Sequence[Codec]
    into: Sequence[Codec]

    @property
    def back(self) -> "Codecs":
        """For the way back: what went out comes in."""
        return Codecs(self.into, self.out)

    @staticmethod
    def alike(codec: Codec, world_size: int) -> "Codecs":
        return Codecs([codec] * world_size, [codec] * world_size)


class _Message:
    """Encoded rows to everybody, and room for theirs; on its way once it is started."""

    def __init__(
        self, door: Door, channel: str, parts: list[Tensor], sizes: list[int], codecs: Sequence[Codec], width: int
    ) -> None:
        self._start = partial(door.all_to_all, parts, sizes, channel=channel)
        self._transfer: Transfer[list[Tensor]] | None = None
        self.codecs = codecs
        self.width = width

    def start(self) -> Transfer[list[Tensor]]:
        if self._transfer is None:
            self._transfer = self._start()
            del self._start  # with the encoded rows: the transfer keeps what it still needs
        return self._transfer


class Wire:
    """Stale, it hands out what was sent an epoch ago; a row that was not sent is what it last was."""

    def __init__(
        self,
        door: Door,
        channel: str,
        send_to: Sequence[int],
        receive_from: Sequence[int],
        codec: Codec,
        *,
        keeps: bool = False,
    ) -> None:
        self._door = door
        self.channel = channel
        self.send_to = list(send_to)
        self.receive_from = list(receive_from)
        self.codecs = Codecs.alike(codec, door.world_size)
        self.full_codecs = self.codecs  # those of an epoch in which every row is sent
        self._posted: _Message | None = None  # this epoch's
        self._flying: _Message | None = None  # the last epoch's, not yet looked at
        self._keeps = keeps  # whether later epochs need what was received
        self.held: Tensor | None = None  # what was last received
        self.bits: tuple[Tensor, Tensor] | None = None  # of each row out and in, where they were assigned
        self.trace: Trace | None = None
        self.width = 0  # of the rows last sent
        self._posted_s = 0.0
        self._has_arrived = False  # what was posted
        self.window_s = 0.0  # from posting to asking, last time: what computation could hide
        self.exposed_s = 0.0  # stood still, last time
        self.flight_s = 0.0  # on its way, last time

    def post(self, rows: Tensor, codecs: Codecs, seed: tuple[int, ...], *, hold: bool = False) -> None:
        """Send; or, held, have it ready for `release`."""
        if self._posted is not None:
            raise RuntimeError(
                f"{self.channel}: a pass began before the last one's backward was over; call backward() once for each "
                "pass in training, in turn"
            )
        me = self._door.rank
        self.width = rows.shape[1]
        try:
            with self._door.books.coding(self.channel, rows.numel()):
                outgoing = [
                    codec.encode(part.contiguous(), seed=seed_from(*seed, me, peer))
                    for peer, (codec, part) in enumerate(zip(codecs.out, rows.split(self.send_to), strict=True))
                ]
        except ValueError as error:
            raise NotFinite(
                f"{self.channel}: rank {me}'s message can't be sent in epoch {self._door.step + 1}: {error}. Training "
                "has diverged: try a lower learning rate, or more bits"
            ) from None
        incoming = zip(codecs.into, self.receive_from, strict=True)
        sizes = [codec.nbytes((count, self.width)) for codec, count in incoming]
        self._posted = _Message(self._door, self.channel, outgoing, sizes, codecs.into, self.width)
        self._posted_s = time.perf_counter()
        if not hold:
            self._posted.start()

    def arrive(self) -> None:
        """Stand still until what was posted is here: nothing hides it."""
        assert self._posted is not None
        self._wait(self._posted)
        self.window_s, self._has_arrived = 0.0, True

    def finish(self, *, stale: bool) -> Tensor:
        """This epoch's rows; or, stale, those that were sent an epoch ago, while this epoch's are under way."""
        posted, self._posted = self._posted, None
        assert posted is not None
        if not self._has_arrived:
            self.window_s = time.perf_counter() - self._posted_s
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

    def _wait(self, message: _Message) -> list[Tensor]:
        start = time.perf_counter()
        transfer = message.start()
        received = transfer.wait()
        self.exposed_s, self.flight_s = time.perf_counter() - start, transfer.seconds
        return received

    def _received(self, message: _Message) -> Tensor:
        received = message.start().wait() if self._has_arrived else self._wait(message)
        self._has_arrived = False
        if not all(codec.fills_out for codec in message.codecs):
            assert self.held is not None  # a row is left out only after it was sent
            rows = self.held.clone()  # autograd may still look at the last ones
        else:
            rows = kernels.empty((sum(self.receive_from), message.width), torch.float32, received[0].device)
        with self._door.books.coding(self.channel):
            for codec, data, part in zip(message.codecs, received, rows.split(self.receive_from), strict=True):
                codec.decode(data, part.shape, out=part)
        return rows
