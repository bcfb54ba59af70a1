"""One direction of a halo exchange: rows to the ranks that read them, rows from owners, and a codec for each peer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from thinwire.codecs import Centred, Codec, kernels, seed_from
from thinwire.fullgraph.copies import FIRST, Copies
from thinwire.fullgraph.trace import Trace
from thinwire.links import Door, Transfer
from thinwire.training.finite import NotFinite


@dataclass(frozen=True)
class Codecs:
    """The codecs of rows sent to each peer, and of rows received from each."""

    out: Sequence[Codec]
    into: Sequence[Codec]

    @property
    def back(self) -> "Codecs":
        """The codecs of the opposite direction."""
        return Codecs(self.into, self.out)

    @staticmethod
    def alike(codec: Codec, world_size: int) -> "Codecs":
        return Codecs([codec] * world_size, [codec] * world_size)


class _Message:
    """Encoded rows to all peers, and the sizes of theirs. Sent by `start`."""

    def __init__(
        self,
        door: Door,
        channel: str,
        parts: list[Tensor],
        sizes: list[int],
        codecs: Sequence[Codec],
        width: int,
        *,
        has_differences: bool,
    ) -> None:
        self._start = partial(door.all_to_all, parts, sizes, channel=channel)
        self._transfer: Transfer[list[Tensor]] | None = None
        self.codecs = codecs
        self.width = width
        self.has_differences = has_differences  # to the rows received before

    def start(self) -> Transfer[list[Tensor]]:
        if self._transfer is None:
            self._transfer = self._start()
            del self._start  # with the encoded rows: the transfer keeps what it still needs
        return self._transfer


class Wire:
    """Posts rows and finishes with those received: this epoch's, or if stale the last epoch's.

    A row that is left out of a message keeps its last received value. With `copies`, messages are differences to the
    rows last received.
    """

    def __init__(
        self,
        door: Door,
        channel: str,
        send_to: Sequence[int],
        receive_from: Sequence[int],
        codec: Codec,
        *,
        keeps: bool = False,
        copies: Copies | None = None,
    ) -> None:
        self._door = door
        self.channel = channel
        self.send_to = list(send_to)
        self.receive_from = list(receive_from)
        self.codecs = Codecs.alike(codec, door.world_size)
        self.full_codecs = self.codecs  # for epochs that send every row
        self._posted: _Message | None = None  # this epoch's message
        self._flying: _Message | None = None  # the last epoch's message, not yet received
        self._keeps = keeps  # whether later epochs need what was received
        self.held: Tensor | None = None  # the rows last received
        self.bits: tuple[Tensor, Tensor] | None = None  # of each row sent and received, if bits were assigned
        self.trace: Trace | None = None
        self.copies = copies  # what the readers hold, if differences are sent
        self.width = 0  # of the rows last sent
        self._posted_s = 0.0
        self._has_arrived = False  # whether the posted message has arrived
        # Times of the last message: from `post` to `finish`, which computation could hide; waiting; in transfer.
        self.window_s = 0.0
        self.exposed_s = 0.0
        self.flight_s = 0.0

    @property
    def chooses_rows(self) -> bool:
        """Whether codecs choose which rows to send."""
        return any(isinstance(codec, Centred) and codec.chooses_rows for codec in self.codecs.out)

    def post(self, rows: Tensor, codecs: Codecs, seed: tuple[int, ...], *, hold: bool = False) -> None:
        """Encode the rows and send them; with `hold`, they are sent by `release`."""
        if self._posted is not None:
            raise RuntimeError(
                f"{self.channel}: a pass began before the last one's backward was over; call backward() once for each "
                "pass in training, in turn"
            )
        rank = self._door.rank
        self.width = rows.shape[1]
        has_differences = self.copies is not None and self.copies.has(rows)
        if self.copies is not None and not has_differences:
            codecs = Codecs.alike(FIRST, self._door.world_size)
        try:
            with self._door.books.coding(self.channel, rows.numel()):
                outgoing = self._encoded(
                    rows, codecs, [seed_from(*seed, rank, peer) for peer in range(len(codecs.out))]
                )
        except ValueError as error:
            raise NotFinite(
                f"{self.channel}: rank {rank}'s message can't be sent in epoch {self._door.step + 1}: {error}. "
                "Training has diverged: try a lower learning rate, or more bits"
            ) from None
        incoming = zip(codecs.into, self.receive_from, strict=True)
        sizes = [codec.nbytes((count, self.width)) for codec, count in incoming]
        self._posted = _Message(
            self._door, self.channel, outgoing, sizes, codecs.into, self.width, has_differences=has_differences
        )
        self._posted_s = time.perf_counter()
        if not hold:
            self._posted.start()

    def _encoded(self, rows: Tensor, codecs: Codecs, seeds: Sequence[int]) -> list[Tensor]:
        """The message for each peer."""
        parts = rows.split(self.send_to)
        if self.copies is None:
            coded = zip(codecs.out, parts, seeds, strict=True)
            return [codec.encode(part.contiguous(), seed=seed) for codec, part, seed in coded]
        if self.copies.has(rows):
            return self.copies.differences(parts, codecs.out, seeds)
        return self.copies.first(parts, seeds)

    def arrive(self) -> None:
        """Wait for the posted message at once, without overlap."""
        assert self._posted is not None
        self._wait(self._posted)
        self.window_s, self._has_arrived = 0.0, True

    def finish(self, *, stale: bool) -> Tensor:
        """This epoch's rows; if stale, the last epoch's, while this epoch's are still under way."""
        posted, self._posted = self._posted, None
        assert posted is not None
        if not self._has_arrived:
            self.window_s = time.perf_counter() - self._posted_s
        self.settle()  # in a synchronous epoch too: messages are received in order
        if stale and self.held is not None:
            self._flying = posted
            return self.held
        received = self._received(posted)
        self.held = received if self._keeps else None
        return received

    def settle(self) -> None:
        """Receive the message that is under way, if any: `held` is then all that later epochs need."""
        if self._flying is not None:
            self.held = self._received(self._flying)
            self._flying = None

    def release(self) -> None:
        """Send the message that was held back, if any."""
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
        if message.has_differences or not all(codec.fills_out for codec in message.codecs):
            assert self.held is not None  # a row is left out only after it was sent once
            rows = self.held.detach().clone()  # autograd may still use the last rows
        else:
            rows = kernels.empty((sum(self.receive_from), message.width), torch.float32, received[0].device)
        with self._door.books.coding(self.channel):
            for codec, data, part in zip(message.codecs, received, rows.split(self.receive_from), strict=True):
                if message.has_differences:
                    codec.add(data, part)
                else:
                    codec.decode(data, part.shape, out=part)
        return rows
