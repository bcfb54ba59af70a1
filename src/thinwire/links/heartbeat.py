"""Who is alive, and how far: each rank writes a sign of life to the store every second and reads the others'.

A rank is lost when its connection broke and its signs stop; when its signs stop for as long as the limit; or when it
stays behind for that long, alive, at an operation that others wait in. One that is loading may take its time, and be
silent for longer, since loading may hold up the thread that gives its signs. Whoever finds out first writes it to the
store, so that all ranks, also those that share no connection with the lost one, stop with the same words. Only the
heartbeat's own thread speaks with the store: it may not answer, and nobody who waits for ranks should wait for it.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch.distributed as dist

BEAT_S = 1.0
# Silence that confirms a broken connection.
SILENCE_S = 3.0
# A transfer that all ranks have entered may take as long as its bytes do at this rate, and the limit.
LEAST_BYTES_PER_S = 100_000
# The same of a rank that is loading or has not opened its door yet, as long as the store itself answers.
LOADING_SILENCE_S = 600.0
VERDICT = "lost"
HERE, LOADING, LEFT = "here", "loading", "left"


class PeerLost(RuntimeError):
    """A rank is gone or stuck. The message names the rank, the channel and the step."""


@dataclass
class Counts:
    """What a rank has entered so far: collectives, and messages to and from each rank."""

    operations: int = 0
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)

    def text(self) -> str:
        return ";".join(
            [str(self.operations), *(",".join(map(str, numbers)) for numbers in (self.sent, self.received))]
        )

    @staticmethod
    def parse(text: str) -> "Counts":
        operations, sent, received = text.split(";")
        return Counts(int(operations), [*map(int, sent.split(","))], [*map(int, received.split(","))])


@dataclass
class PeerStatus:
    """The last that was heard of a rank; times are this rank's clock."""

    counts: Counts
    beat: int = 0  # 0: it has not come yet
    state: str = HERE
    heard_s: float = 0.0
    moved_s: float = 0.0  # when it last entered anything, or had loaded

    @property
    def left(self) -> bool:
        return self.state == LEFT


@dataclass(frozen=True)
class Waiting:
    """What a rank waits for: for all ranks to enter a collective, or for the other end of a message."""

    channel: str
    step: int
    size_bytes: int
    operation: int = 0
    sends_to: int | None = None
    receives_from: int | None = None
    message: int = 0  # its number among those between the two
    ahead_bytes: int = 0  # under way already when it was posted: it shares its links with them
    since_s: float = field(default_factory=time.monotonic)

    def concerns(self, peer: int) -> bool:
        """Whether it cannot end without this rank: a collective needs all, a message two."""
        return self.operation > 0 or peer in (self.sends_to, self.receives_from)

    def is_behind(self, peer: int, counts: Counts, me: int) -> bool:
        if self.sends_to is not None:
            return peer == self.sends_to and counts.received[me] < self.message
        if self.receives_from is not None:
            return peer == self.receives_from and counts.sent[me] < self.message
        return counts.operations < self.operation


class Heartbeat:
    """Gives this rank's signs of life, and watches the others'."""

    def __init__(self, store: dist.Store, *, rank: int, ranks: Sequence[int], limit_s: float) -> None:
        """`ranks` are the numbers in the whole job of those that take part; `rank` is this one's place among them."""
        self._store = store
        self.rank = rank
        self._ranks = ranks
        self.world_size = world_size = len(ranks)
        self.limit_s = limit_s
        self._lock = threading.Lock()
        self._counts = Counts(0, [0] * world_size, [0] * world_size)
        now = time.monotonic()
        nothing = Counts(0, [0] * world_size, [0] * world_size)
        self._statuses = [PeerStatus(nothing, heard_s=now, moved_s=now) for _ in range(world_size)]
        self._verdict: str | None = None
        self._agreed = threading.Event()  # set once the verdict is the one in the store
        self._beats = 0
        self._is_loading = False
        self._answered_s = now  # when the store last did
        self._wake = threading.Event()
        self._stop = False
        self._under_way_bytes = 0
        # Reading a key that does not exist would block, so every rank makes all keys.
        for peer in range(world_size):
            store.compare_set(_key(peer), "", f"0 {HERE} {nothing.text()}")
        self._thread = threading.Thread(target=self._run, name="thinwire-heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say that this rank leaves; without a word where the store does not answer."""
        self._stop = True
        self._wake.set()
        self._thread.join(2 * BEAT_S)

    @contextmanager
    def loading(self, step: int) -> Iterator[None]:
        """While inside, nobody takes this rank for stuck. All ranks leave together, and post nothing before that."""
        self._is_loading = True
        self._wake.set()
        try:
            yield
        finally:
            self._is_loading = False
        waiting = Waiting("loading", step, 0, operation=self.enters_collective())
        self._wake.set()
        while self._is_anybody_behind(waiting):
            self.check(waiting)
            if (
                time.monotonic() - waiting.since_s < BEAT_S
            ):  # so that ranks which load equally long do not wait for a beat
                self._wake.set()
            time.sleep(BEAT_S / 20)

    def enters_collective(self) -> int:
        with self._lock:
            self._counts.operations += 1
            return self._counts.operations

    def enters_send(self, peer: int) -> int:
        with self._lock:
            self._counts.sent[peer] += 1
            return self._counts.sent[peer]

    def enters_receive(self, peer: int) -> int:
        with self._lock:
            self._counts.received[peer] += 1
            return self._counts.received[peer]

    def begins(self, size_bytes: int) -> int:
        """Count a transfer that is posted; how many bytes were under way before it."""
        with self._lock:
            self._under_way_bytes += size_bytes
            return self._under_way_bytes - size_bytes

    def ends(self, size_bytes: int) -> None:
        with self._lock:
            self._under_way_bytes -= size_bytes

    def check(self, waiting: Waiting) -> None:
        """Raise PeerLost if somebody is known to be lost, or has been silent or behind for too long."""
        if self._verdict is not None:
            raise self._lost()
        now = time.monotonic()
        others = [(peer, status) for peer, status in enumerate(self._statuses) if peer != self.rank]
        behind = [peer for peer, status in others if waiting.is_behind(peer, status.counts, self.rank)]
        for peer, status in others:
            if status.left:
                # Two beats later, since what it last entered may not be known here yet.
                if peer in behind and now - waiting.since_s > 2 * BEAT_S:
                    raise self._condemn(f"rank {self._ranks[peer]} has left", waiting)
                continue
            if not status.beat and not waiting.concerns(peer):
                continue  # it has not come yet, and this message does not need it
            if now - status.heard_s > self._patience_s(status, now):
                what = "silent" if status.beat else "not yet at its door"
                raise self._condemn(f"rank {self._ranks[peer]} {what} for {now - status.heard_s:.0f} s", waiting)
            if status.state == LOADING:
                continue
            late_s = now - max(status.moved_s, waiting.since_s)
            if peer in behind and late_s > self.limit_s + 2 * BEAT_S:
                raise self._condemn(f"rank {self._ranks[peer]} alive but stuck for {late_s:.0f} s", waiting)
        took_s = now - waiting.since_s
        size_bytes = waiting.size_bytes + waiting.ahead_bytes
        if not behind and took_s > self.limit_s + size_bytes / LEAST_BYTES_PER_S:
            what = f"all ranks are there, and {waiting.size_bytes} bytes have not arrived after {took_s:.0f} s"
            raise self._condemn(f"{what} (do both ends expect the same sizes?)", waiting)

    def _is_anybody_behind(self, waiting: Waiting) -> bool:
        others = (status.counts for peer, status in enumerate(self._statuses) if peer != self.rank)
        return any(waiting.is_behind(0, counts, self.rank) for counts in others)

    def _patience_s(self, status: PeerStatus, now: float) -> float:
        """How long this rank may be silent before it counts as lost."""
        store_answers = now - self._answered_s < self.limit_s
        busy = status.state == LOADING or not status.beat
        return max(self.limit_s, LOADING_SILENCE_S) if busy and store_answers else self.limit_s

    def broken(self, waiting: Waiting, error: str) -> PeerLost:
        """The error for a broken connection: within a few beats it shows which rank is gone."""
        deadline = time.monotonic() + SILENCE_S + 3 * BEAT_S
        while self._verdict is None and time.monotonic() < deadline:
            silent = [
                peer for peer in self._silent() if self._statuses[peer].beat and self._statuses[peer].state == HERE
            ]
            if silent:
                return self._condemn(f"rank {self._ranks[silent[0]]} gone", waiting)
            time.sleep(BEAT_S / 10)
        if self._verdict is not None:
            return self._lost()
        for peer in self._silent():
            status = self._statuses[peer]
            how = "has left" if status.left else "gone while it was loading" if status.beat else "never came"
            return self._condemn(f"rank {self._ranks[peer]} {how}", waiting)
        where = f"on channel {waiting.channel!r} in step {waiting.step}"
        return PeerLost(f"a connection broke {where}, though all ranks live: {error}")

    def _condemn(self, what: str, waiting: Waiting) -> PeerLost:
        silent = self._silent()
        alive = [rank for peer, rank in enumerate(self._ranks) if peer not in silent]
        with self._lock:
            if self._verdict is None:
                self._verdict = f"{what}, on channel {waiting.channel!r} in step {waiting.step}; alive: {alive}"
        return self._lost()

    def _lost(self) -> PeerLost:
        # All ranks raise the words of the first, if the store answers soon.
        self._wake.set()
        self._agreed.wait(2 * BEAT_S)
        return PeerLost(self._verdict)

    def _silent(self) -> list[int]:
        now = time.monotonic()
        return [
            peer
            for peer, status in enumerate(self._statuses)
            if peer != self.rank and (now - status.heard_s > SILENCE_S or status.left)
        ]

    def _run(self) -> None:
        while not self._stop:
            with suppress(RuntimeError):  # the store does not answer: the others' silence will say it
                self._beat()
            self._wake.wait(BEAT_S)
            self._wake.clear()
        with suppress(RuntimeError):
            self._store.set(_key(self.rank), f"{self._beats} {LEFT} {self._own_counts()}")

    def _own_counts(self) -> str:
        with self._lock:
            return self._counts.text()

    def _beat(self) -> None:
        self._beats += 1
        state = LOADING if self._is_loading else HERE
        self._store.set(_key(self.rank), f"{self._beats} {state} {self._own_counts()}")
        texts = self._store.multi_get([_key(peer) for peer in range(self.world_size)])
        self._answered_s = now = time.monotonic()
        for status, text in zip(self._statuses, texts, strict=True):
            beat, state, counts = text.decode().split(" ", 2)
            if not status.beat or (state, counts) != (status.state, status.counts.text()):
                status.state, status.counts, status.moved_s = state, Counts.parse(counts), now
            if int(beat) != status.beat:
                status.beat, status.heard_s = int(beat), now
        if not self._agreed.is_set():
            self._agree()

    def _agree(self) -> None:
        """Publish our verdict, or take over the one that was there first."""
        if self._verdict is not None:
            self._verdict = self._store.compare_set(VERDICT, "", self._verdict).decode()
            self._agreed.set()
        elif self._store.check([VERDICT]):
            self._verdict = self._store.get(VERDICT).decode()
            self._agreed.set()


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"
