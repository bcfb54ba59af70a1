"""The door: every byte that leaves a rank leaves here, counted by channel and peer, and never waited for without end.

Asynchronous collectives on torch.distributed, gloo and NCCL alike. Callers bundle: one message per peer and call. Sizes
are known from the plan on both sides and are never sent ahead.
"""

import math
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.links import streams
from thinwire.links.books import Books
from thinwire.links.crew import Crew
from thinwire.links.pulse import Pulse
from thinwire.links.routes import TREE_BYTES, chain_heirs, tree_heirs

T = TypeVar("T")

LIMIT_S = 60.0
# Tags below this are collectives' operation numbers, those from it on point to point channels.
TAGS = 1 << 28
# How often a waiting rank looks around.
LOOK_S = 0.1


class Transfer(Generic[T]):
    """Something on its way. `wait` gives its result, or raises PeerLost."""

    def __init__(self, door: "Door", channel: str, operation: int, finish: Callable[[], T]) -> None:
        self._door = door
        self._channel = channel
        self._step = door.step
        self.operation = operation
        self._finish = finish
        self._posted_s = time.perf_counter()
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> T:
        start = time.perf_counter()
        try:
            while not self._ended.wait(LOOK_S):
                self._door.pulse.check(self._channel, self._step, self.operation)
        finally:
            self._door.books.waited(self._channel, time.perf_counter() - start)
        if self._error is not None:
            raise self._door.pulse.broken(self._channel, self._step, str(self._error)) from self._error
        return self._finish()

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self._door.books.finished(self._channel, time.perf_counter() - self._posted_s)
        self._ended.set()


class Door:
    """This rank's way to the others. `step` is the caller's own count (an epoch, an iteration), named in errors."""

    def __init__(self, store: dist.Store, *, limit_s: float = LIMIT_S) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.books = Books()
        self._crew = Crew()
        self.step = 0
        self.pulse = Pulse(
            dist.PrefixStore("thinwire-door", store), rank=self.rank, world_size=self.world_size, limit_s=limit_s
        )

    def close(self) -> None:
        """Stop giving signs of life. Threads that have brought a transfer to its end are let go first."""
        self._crew.close(LOOK_S)
        self.pulse.close()

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def all_to_all(
        self, outgoing: Sequence[Tensor], incoming_bytes: Sequence[int], *, channel: str
    ) -> Transfer[list[Tensor]]:
        """outgoing[p] to rank p, uint8; incoming_bytes[p] from it. One's own place is copied."""
        self._expect_places("outgoing", outgoing)
        self._expect_places("incoming_bytes", incoming_bytes)
        parts = [_as_bytes(data) for data in outgoing]
        sizes = [part.nbytes for part in parts]
        incoming = list(incoming_bytes)
        received = torch.empty(sum(incoming), dtype=torch.uint8, device=parts[0].device)
        views = list(torch.split(received, incoming))
        transfer = self._transfer(channel, self._to_peers(sizes), lambda: views)
        if received.device.type == "cpu":
            return self._on_thread(transfer, lambda: streams.exchange(parts, views, tag=transfer.operation % TAGS))
        sent = _bundle(parts)
        return self._follow(
            transfer, lambda: dist.all_to_all_single(received, sent, incoming, sizes, async_op=True), keep=sent
        )

    def all_gather(self, data: Tensor, sizes: Sequence[int], *, channel: str) -> Transfer[list[Tensor]]:
        """Everybody's bytes, sizes[p] of them from rank p."""
        self._expect_places("sizes", sizes)
        sent = _as_bytes(data)
        if sent.nbytes != sizes[self.rank]:
            raise ValueError(
                f"all_gather: rank {self.rank} gives {sent.nbytes} bytes, the plan says {sizes[self.rank]}"
            )
        if len(set(sizes)) > 1:
            # gloo's own refuses unequal sizes. Padding would send the largest size around the ring; each to all
            # sends what there is.
            return self.all_to_all([sent] * self.world_size, sizes, channel=channel)
        received = [torch.empty_like(sent) for _ in sizes]
        # A ring: what I send goes to my neighbour, mine and then what I was handed.
        neighbour = {(self.rank + 1) % self.world_size: sent.nbytes * (self.world_size - 1)}
        transfer = self._transfer(channel, neighbour if self.world_size > 1 else {}, lambda: received)
        return self._follow(transfer, lambda: dist.all_gather(received, sent, async_op=True), keep=sent)

    def all_reduce(self, x: Tensor, *, channel: str) -> Transfer[Tensor]:
        """The sum of everybody's x, in x itself."""
        n = self.world_size
        # A ring again, scatter then gather: 2 (n - 1) / n of x to the neighbour.
        neighbour = {(self.rank + 1) % n: math.ceil(2 * (n - 1) / n * x.nbytes)} if n > 1 else {}
        transfer = self._transfer(channel, neighbour, lambda: x)
        return self._follow(transfer, lambda: dist.all_reduce(x, async_op=True), keep=x)

    def broadcast(self, x: Tensor, source: int, *, channel: str) -> Transfer[Tensor]:
        """The source's x, in x itself."""
        large = x.nbytes > TREE_BYTES and x.device.type == "cpu"
        heirs = (chain_heirs if large else tree_heirs)(self.rank, source, self.world_size)
        transfer = self._transfer(channel, dict.fromkeys(heirs, x.nbytes), lambda: x)
        if large:
            data = _as_bytes(x)
            return self._on_thread(transfer, lambda: streams.chain(data, source, tag=transfer.operation % TAGS))
        return self._follow(transfer, lambda: dist.broadcast(x, source, async_op=True), keep=x)

    def send(self, data: Tensor, peer: int, *, channel: str) -> Transfer[None]:
        self._expect_peer("send to", peer)
        sent = _as_bytes(data)
        transfer = self._transfer(channel, {peer: sent.nbytes}, lambda: None, counts=False)
        work = dist.isend(sent, peer, tag=_channel_tag(channel))
        return self._on_thread(transfer, lambda: _wait_for(work, sent))

    def receive(self, size: int, peer: int, *, channel: str, device: torch.device | None = None) -> Transfer[Tensor]:
        self._expect_peer("receive from", peer)
        received = torch.empty(size, dtype=torch.uint8, device=device)
        transfer = self._transfer(channel, {}, lambda: received, counts=False)
        work = dist.irecv(received, peer, tag=_channel_tag(channel))
        return self._on_thread(transfer, lambda: _wait_for(work, received))

    def _transfer(
        self, channel: str, bytes_to: dict[int, int], finish: Callable[[], T], *, counts: bool = True
    ) -> Transfer[T]:
        # Collectives are entered by all ranks alike: counting them shows who stays behind. Point to point is not.
        if counts:
            self.pulse.operations += 1
        self.books.posted(channel, bytes_to)
        return Transfer(self, channel, self.pulse.operations if counts else 0, finish)

    def _follow(self, transfer: Transfer[T], post: Callable[[], Any], *, keep: object) -> Transfer[T]:
        """Post, and mark the transfer's end when the backend says so. `keep` must outlive the transfer."""
        work = post()

        def ended(future: torch.futures.Future[Any], kept: object = keep) -> None:
            error: BaseException | None = None
            try:
                future.wait()
            except RuntimeError as raised:
                error = raised
            transfer._end(error)

        work.get_future().add_done_callback(ended)
        return transfer

    def _on_thread(self, transfer: Transfer[T], work: Callable[[], None]) -> Transfer[T]:
        """As above, for what gloo gives no future for: a thread does the waiting."""

        def body() -> None:
            error: BaseException | None = None
            try:
                work()
            except RuntimeError as raised:
                error = raised
            transfer._end(error)

        self._crew.do(body)
        return transfer

    def _to_peers(self, sizes: Sequence[int]) -> dict[int, int]:
        return {peer: size for peer, size in enumerate(sizes) if peer != self.rank}

    def _expect_peer(self, what: str, peer: int) -> None:
        if not 0 <= peer < self.world_size or peer == self.rank:
            raise ValueError(f"{what} rank {peer}: rank {self.rank} of {self.world_size} can only reach the others")

    def _expect_places(self, what: str, given: Sequence[object]) -> None:
        if len(given) != self.world_size:
            raise ValueError(f"{what} has {len(given)} entries; give one for each of the {self.world_size} ranks")


def _channel_tag(channel: str) -> int:
    return TAGS + zlib.crc32(channel.encode()) % TAGS


def _wait_for(work: Any, kept: Tensor) -> None:
    """`kept` must live as long as the work."""
    work.wait()


def _as_bytes(data: Tensor) -> Tensor:
    if not data.is_contiguous():
        raise ValueError(f"data of shape {tuple(data.shape)} is not contiguous; give data.contiguous()")
    return data.detach().view(-1).view(torch.uint8)


def _bundle(parts: Sequence[Tensor]) -> Tensor:
    """One flat tensor of all parts; a view where they follow each other in one buffer, as callers may encode them."""
    first, place = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.nbytes and part.data_ptr() != place:
            return torch.cat(list(parts))
        place += part.nbytes
    if place > first.untyped_storage().data_ptr() + first.untyped_storage().nbytes():
        return torch.cat(list(parts))
    return first.as_strided((place - first.data_ptr(),), (1,))
