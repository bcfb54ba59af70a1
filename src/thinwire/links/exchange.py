"""The door: every byte that leaves a rank leaves here. It is counted by channel and peer, and no wait is without end.

Asynchronous collectives on torch.distributed, gloo and NCCL alike. Callers bundle: one message per peer and call. Sizes
are known from the plan on both sides and are never sent ahead.
"""

import atexit
import json
import math
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire import leaving
from thinwire.links import streams
from thinwire.links.books import Books
from thinwire.links.flat import as_bytes, bundle
from thinwire.links.heartbeat import Heartbeat, Waiting
from thinwire.links.routes import TREE_BYTES, chain_heirs, reduce_heir, ring_heir, tree_heirs
from thinwire.links.tags import EVERYBODY, SPAN, End, Tags
from thinwire.links.thread_pool import ThreadPool
from thinwire.links.transfer import LOOK_S, Transfer

T = TypeVar("T")

LIMIT_S = 60.0
# The backend's own limit, as a multiple of the door's.
BACKEND_LIMITS = 10
# A relay of the same key may be under way so many times at once.
REPEATS = 64
# Doors of the same ranks are numbered in the order they are opened, which is the same on all of them.
_doors: Counter[tuple[int, ...]] = Counter()
_open: list["Door"] = []  # in the order they were opened


class Door:
    """This rank's way to the others. `step` is the caller's own count (an epoch, an iteration), named in errors.

    `thinwire.init()` opens the first; `Door()` is one more over the process group that there is.

    Ranks open their doors in the same order, and enter each channel's collectives in the same order. Those of several
    channels may be posted in any order, but for `all_reduce`, `all_gather` of equal sizes and broadcasts of up to 4 kB,
    which the backend matches by order alone.

    Over a process group it reaches that group's ranks, and `rank` and `world_size` are the group's. Errors name ranks
    by their numbers in the whole job.
    """

    def __init__(
        self,
        *,
        limit_s: float = LIMIT_S,
        name: str | None = None,
        group: dist.ProcessGroup | None = None,
        job: AbstractContextManager[object] | None = None,
    ) -> None:
        """A door with a name of its own need not be opened by all ranks: messages pass between those that did.

        `job` has been entered for this door, and is left when the door closes.
        """
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError(f"rank {dist.get_rank()} is not in the process group; open a door over a group it is in")
        self.group = group
        self.world_size = dist.get_world_size(group)
        self.ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))  # their numbers in the whole job
        self.books = Books()
        self.step = 0
        whose = "all" if len(self.ranks) == dist.get_world_size() else ",".join(map(str, self.ranks))
        if name is None:
            name = f"{whose}-{_doors[self.ranks]}"
            _doors[self.ranks] += 1
        self._name = name
        self._thread_pool = ThreadPool()
        self._lock = threading.Lock()
        self._entered: defaultdict[str, int] = defaultdict(int)  # collectives by channel
        self._repeats: defaultdict[str, int] = defaultdict(int)  # relays by channel
        if limit_s > LIMIT_S:  # the door's limit counts, so the backend's must be longer
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=BACKEND_LIMITS * limit_s), group)
        store = dist.distributed_c10d._get_default_store()
        self._tags = Tags(dist.PrefixStore(f"thinwire-tags-{whose}", store))  # which all doors of a group share
        self.store = dist.PrefixStore(f"thinwire-door-{name}", store)
        self.heartbeat = Heartbeat(self.store, rank=self.rank, ranks=self.ranks, limit_s=limit_s)
        self._job = job
        self._callbacks = leaving.UnderWay()
        if not _open:
            atexit.register(_end_with_process)
        _open.append(self)

    @property
    def device(self) -> torch.device:
        """Where this rank computes: its GPU where there is one, else the processor."""
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    @property
    def local_rank(self) -> int:
        """This rank's number among those of its machine, by the environment's LOCAL_RANK; 0 where nobody set it."""
        return dist.get_node_local_rank(fallback_rank=0)

    def loading(self) -> AbstractContextManager[None]:
        """A block without a limit, to read or make this rank's data in. All ranks enter it, and leave it together."""
        return self.heartbeat.loading(self.step)

    def close(self) -> None:
        """Stop giving signs of life, and leave the job that was joined for this door.

        Threads that have brought a transfer to its end are let go first.
        """
        self._close(None)

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        # What comes back from C++ while Python ends aborts the process. Without transfers, all threads end soon.
        self._thread_pool.close(LOOK_S if leaving.transfers.count else leaving.PATIENCE_S)
        self._callbacks.wait(leaving.PATIENCE_S)
        self.heartbeat.close()
        if self in _open:
            _open.remove(self)
        if not _open:
            atexit.unregister(_end_with_process)
        job, self._job = self._job, None
        if job is not None:
            job.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def all_to_all(
        self, outgoing: Sequence[Tensor], incoming_bytes: Sequence[int], *, channel: str
    ) -> Transfer[list[Tensor]]:
        """outgoing[p] goes to rank p, and incoming_bytes[p] bytes come from it. A rank's part for itself is copied."""
        self._expect_places("outgoing", outgoing)
        self._expect_places("incoming_bytes", incoming_bytes)
        parts = [as_bytes(data) for data in outgoing]
        sizes = [part.nbytes for part in parts]
        incoming = list(incoming_bytes)
        if sizes[self.rank] != incoming[self.rank]:
            raise ValueError(
                f"all_to_all: rank {self.rank} has {sizes[self.rank]} bytes for itself and expects "
                f"{incoming[self.rank]} from itself; give the same"
            )
        received = torch.empty(sum(incoming), dtype=torch.uint8, device=parts[0].device)
        views = list(torch.split(received, incoming))
        transfer, number = self._enter("all_to_all", channel, dict(enumerate(sizes)), received.nbytes, lambda: views)
        if received.device.type == "cpu":
            work = partial(streams.exchange, parts, views, group=self.group)
            return self._tagged(transfer, channel, number % SPAN, work)
        sent = bundle(parts)
        return self._follow(
            transfer,
            lambda: dist.all_to_all_single(received, sent, incoming, sizes, group=self.group, async_op=True),
            keep=sent,
        )

    def all_gather(self, data: Tensor, sizes: Sequence[int], *, channel: str) -> Transfer[list[Tensor]]:
        """The bytes of all ranks, sizes[p] of them from rank p."""
        self._expect_places("sizes", sizes)
        sent = as_bytes(data)
        if sent.nbytes != sizes[self.rank]:
            raise ValueError(
                f"all_gather: rank {self.rank} gives {sent.nbytes} bytes, the plan says {sizes[self.rank]}"
            )
        if len(set(sizes)) > 1:
            # gloo's own refuses unequal sizes. With padding the largest size would go round the ring for every rank.
            return self.all_to_all([sent] * self.world_size, sizes, channel=channel)
        received = [torch.empty_like(sent) for _ in sizes]
        # A ring: this rank's bytes go to its neighbour, and then what came from the other one.
        bytes_to = {ring_heir(self.rank, self.world_size): sent.nbytes * (self.world_size - 1)}
        transfer, _ = self._enter("all_gather", channel, bytes_to, sum(sizes), lambda: received)
        return self._follow(
            transfer, lambda: dist.all_gather(received, sent, group=self.group, async_op=True), keep=sent
        )

    def gather(self, x: Tensor | float, *, channel: str) -> Tensor:
        """Every rank's x, all of one shape, stacked by rank. Waits: it is meant for a few numbers."""
        x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)
        parts = self.all_gather(x.contiguous(), [x.nbytes] * self.world_size, channel=channel).wait()
        return torch.stack([part.clone().view(x.dtype).view(x.shape) for part in parts])

    def gather_json(self, value: Any, *, channel: str) -> list[Any]:
        """Every rank's value, by rank, for facts of any shape that JSON can hold. Waits."""
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = self.gather(torch.tensor([mine.nbytes]), channel=channel).flatten().tolist()
        parts = self.all_gather(mine, sizes, channel=channel).wait()
        return [json.loads(bytes(part.numpy())) for part in parts]

    def barrier(self, *, channel: str) -> None:
        """Wait until all ranks are here."""
        self.gather(torch.zeros(1), channel=channel)

    def all_reduce(self, x: Tensor, *, channel: str) -> Transfer[Tensor]:
        """The sum of all ranks' x, in x itself."""
        n = self.world_size
        # A ring again, scatter then gather: 2 (n - 1) / n of x to the neighbour.
        bytes_to = {reduce_heir(self.rank, n): math.ceil(2 * (n - 1) / n * x.nbytes)}
        transfer, _ = self._enter("all_reduce", channel, bytes_to, 2 * x.nbytes, lambda: x)
        return self._follow(transfer, lambda: dist.all_reduce(x, group=self.group, async_op=True), keep=x)

    def broadcast(self, x: Tensor, source: int, *, channel: str) -> Transfer[Tensor]:
        """The source's x, in x itself."""
        if not 0 <= source < self.world_size:
            raise ValueError(f"broadcast from rank {source}: there are {self.world_size} ranks")
        data = as_bytes(x)
        large = x.nbytes > TREE_BYTES and x.device.type == "cpu"
        heirs = (chain_heirs if large else tree_heirs)(self.rank, source, self.world_size)
        transfer, number = self._enter("broadcast", channel, dict.fromkeys(heirs, x.nbytes), x.nbytes, lambda: x)
        if large:
            work = partial(streams.chain, data, source, group=self.group)
            return self._tagged(transfer, channel, number % SPAN, work)
        return self._follow(
            transfer, lambda: dist.broadcast(data, group_src=source, group=self.group, async_op=True), keep=data
        )

    def send(self, data: Tensor, peer: int, *, channel: str) -> Transfer[None]:
        self._expect_peer("send to", peer)
        sent = as_bytes(data)
        number = self.heartbeat.enters_send(peer)
        ahead = self.heartbeat.begins(sent.nbytes)
        waiting = Waiting(channel, self.step, sent.nbytes, sends_to=peer, message=number, ahead_bytes=ahead)
        entry = self.books.posted(channel, {peer: sent.nbytes}, "send")
        transfer: Transfer[None] = Transfer(self.books, self.heartbeat, waiting, lambda: None, entry)
        return self._message(
            transfer, channel, lambda tag: dist.isend(sent, group_dst=peer, group=self.group, tag=tag), sent
        )

    def receive(self, size: int, peer: int, *, channel: str, device: torch.device | None = None) -> Transfer[Tensor]:
        self._expect_peer("receive from", peer)
        received = torch.empty(size, dtype=torch.uint8, device=device)
        number = self.heartbeat.enters_receive(peer)
        ahead = self.heartbeat.begins(size)
        waiting = Waiting(channel, self.step, size, receives_from=peer, message=number, ahead_bytes=ahead)
        entry = self.books.posted(channel, {}, "receive")
        transfer = Transfer(self.books, self.heartbeat, waiting, lambda: received, entry)
        return self._message(
            transfer, channel, lambda tag: dist.irecv(received, group_src=peer, group=self.group, tag=tag), received
        )

    def repeat(self, channel: str) -> int:
        """How often this was asked before for the channel: numbers relays that all ranks come to in one order."""
        with self._lock:
            self._repeats[channel] += 1
            return self._repeats[channel] - 1

    def relay(
        self,
        data: Tensor,
        source: int | None,
        heirs: Sequence[int],
        *,
        channel: str,
        key: str,
        repeat: int,
        number: int = 0,
        chunk_bytes: int,
    ) -> Transfer[Tensor]:
        """A rank's part in a tree: `data` comes from the source, or is here if there is none, and goes on to the heirs.

        Each chunk goes on while the rest is still coming. Relays that are under way at the same time must differ in
        `key`, `repeat` (how often it was done before) or `number`; all ranks of one relay give the same.
        """
        for peer in (*heirs, *(() if source is None else (source,))):
            self._expect_peer("relay with", peer)
        passed = as_bytes(data)
        size = passed.nbytes * (len(heirs) + (source is not None))
        ahead = self.heartbeat.begins(size)
        # An error names the source if nothing comes, or else the first heir.
        if source is not None:
            waiting = Waiting(
                channel,
                self.step,
                size,
                receives_from=source,
                message=self.heartbeat.enters_receive(source),
                ahead_bytes=ahead,
            )
            for heir in heirs:
                self.heartbeat.enters_send(heir)
        else:
            numbers = {heir: self.heartbeat.enters_send(heir) for heir in heirs}
            waiting = Waiting(channel, self.step, size, sends_to=heirs[0], message=numbers[heirs[0]], ahead_bytes=ahead)
        entry = self.books.posted(channel, dict.fromkeys(heirs, passed.nbytes), "relay")
        transfer = Transfer(self.books, self.heartbeat, waiting, lambda: data, entry)
        work = partial(streams.relay, passed, source, tuple(heirs), chunk_bytes=chunk_bytes, group=self.group)
        if data.device.type == "cuda":  # NCCL knows no tags: in the order of posting, on the caller's thread
            transfer.end(_error_of(partial(work, tag=0)))
            return transfer
        ends = [("to", heir) for heir in heirs]
        if source is not None:
            ends.append(("from", source))
        return self._tagged(transfer, f"{key} in repeat {repeat % REPEATS}", number, work, ends)

    def _enter(
        self, kind: str, channel: str, bytes_to: dict[int, int], incoming_bytes: int, finish: Callable[[], T]
    ) -> tuple[Transfer[T], int]:
        """Count a collective; its transfer, and its number on the channel, the same on all ranks."""
        with self._lock:
            self._entered[channel] += 1
            number = self._entered[channel]
            operation = self.heartbeat.enters_collective()
        bytes_to = {peer: size for peer, size in bytes_to.items() if peer != self.rank}
        entry = self.books.posted(channel, bytes_to, kind)
        size = sum(bytes_to.values()) + incoming_bytes
        waiting = Waiting(channel, self.step, size, operation=operation, ahead_bytes=self.heartbeat.begins(size))
        return Transfer(self.books, self.heartbeat, waiting, finish, entry), number

    def _follow(self, transfer: Transfer[T], post: Callable[[], Any], *, keep: Tensor) -> Transfer[T]:
        """Post, and mark the transfer's end when the backend says so. `keep` must outlive the transfer."""
        try:
            work = post()
        except RuntimeError as error:  # a rank has gone: `wait` raises it, as it does other errors
            transfer.end(error)
            return transfer
        if keep.device.type == "cuda":
            transfer.streamed.append(work)
        work.get_future().add_done_callback(_Callback(transfer, keep, self._callbacks))
        return transfer

    def _message(self, transfer: Transfer[T], channel: str, post: Callable[[int], Any], kept: Tensor) -> Transfer[T]:
        """Post on the caller's thread, since order counts; wait on another, since gloo gives no future for messages."""
        try:
            work = post(self._tags.of_messages(self._of_this_door(channel)))
        except RuntimeError as error:
            transfer.end(error)
            return transfer
        if kept.device.type == "cuda":
            transfer.streamed.append(work)
        self._thread_pool.do(lambda: transfer.end(_error_of(lambda: _wait_for(work, kept))))
        return transfer

    def _tagged(
        self,
        transfer: Transfer[T],
        name: str,
        number: int,
        work: Callable[..., None],
        ends: Sequence[End] = (EVERYBODY,),
    ) -> Transfer[T]:
        """Do this on a thread, with a tag that nothing else under way to or from these ends has."""
        try:
            tag = self._tags.take(self._of_this_door(name), number, ends)
        except RuntimeError as error:
            transfer.end(error)
            return transfer

        def done() -> None:
            error = _error_of(partial(work, tag=tag))
            self._tags.give_back(tag, ends)
            transfer.end(error)

        self._thread_pool.do(done)
        return transfer

    def _of_this_door(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _expect_peer(self, what: str, peer: int) -> None:
        if not 0 <= peer < self.world_size or peer == self.rank:
            raise ValueError(f"{what} rank {peer}: rank {self.rank} of {self.world_size} can only reach the others")

    def _expect_places(self, what: str, entries: Sequence[object]) -> None:
        if len(entries) != self.world_size:
            raise ValueError(f"{what} has {len(entries)} entries; give one for each of the {self.world_size} ranks")


class _Callback:
    """Ends a transfer, on a thread of the backend. That thread needs Python until it has let go of this object."""

    def __init__(self, transfer: Transfer[Any], keep: Tensor, running: leaving.UnderWay) -> None:
        self._transfer, self._keep, self._running = transfer, keep, running
        self._is_called = False

    def __call__(self, future: torch.futures.Future[Any]) -> None:
        self._is_called = True
        self._running.begins()
        self._transfer.end(_error_of(future.wait))

    def __del__(self) -> None:
        if self._is_called:
            self._running.ends()


def _end_with_process() -> None:
    """A script ends that has not closed its doors: as after an error where one was, or where a transfer hangs."""
    error = getattr(sys, "last_value", None)
    if error is None and leaving.transfers.count:
        error = RuntimeError("transfers are under way")
    for door in reversed(_open.copy()):
        door._close(error)
    leaving.leave()


def _error_of(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except BaseException as raised:
        return raised
    return None


def _wait_for(work: Any, kept: Tensor) -> None:
    """Wait for a message; `kept` is its buffer, which must live as long."""
    if kept.device.type == "cuda":  # given a limit, NCCL would make this thread wait and not the stream
        work.wait()
    else:
        work.wait(streams.UNLIMITED)
