"""Who is alive, and how far: each rank writes a sign of life to the store every second and reads the others'.

A rank is lost when its connection broke and its signs stop; when its signs stop for as long as the limit; or when it
stays behind for that long, alive, at an operation that others wait in. Whoever finds out first writes it to the store,
so that all ranks, also those that share no connection with the lost one, stop with the same words.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

BEAT_S = 1.0
# Silence that confirms a broken connection.
SILENCE_S = 3.0
LEFT = "left"


class PeerLost(RuntimeError):
    """A rank is gone or stuck. The message names the rank, the channel and the step."""


@dataclass
class _Sign:
    """The last that was heard of a rank, on our own clock."""

    text: str = ""
    heard_s: float = 0.0
    operations: int = 0
    moved_s: float = 0.0  # when its count of operations last rose


class Pulse:
    """This rank's heartbeat and its ear for the others'."""

    def __init__(self, store: dist.Store, *, rank: int, world_size: int, limit_s: float) -> None:
        self._store = store
        self.rank = rank
        self.world_size = world_size
        self.limit_s = limit_s
        self.operations = 0  # entered by this rank so far
        now = time.monotonic()
        self._signs = [_Sign(heard_s=now, moved_s=now) for _ in range(world_size)]
        self._verdict: str | None = None
        self._beats = 0
        self._stop = threading.Event()
        # Keys must exist before they are read in one go.
        store.set(self._key(rank), "0 0")
        self._thread = threading.Thread(target=self._run, name="thinwire-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2 * BEAT_S)
        with suppress(RuntimeError):  # the store has gone first: nobody is left to tell
            self._store.set(self._key(self.rank), f"{LEFT} {self.operations}")

    def check(self, channel: str, step: int, operation: int) -> None:
        """Raise PeerLost if somebody is known to be lost, or has been silent or behind for too long."""
        if self._verdict is not None:
            raise PeerLost(self._verdict)
        now = time.monotonic()
        for peer, sign in enumerate(self._signs):
            if peer == self.rank:
                continue
            if now - sign.heard_s > self.limit_s:
                self._condemn(f"rank {peer} silent for {now - sign.heard_s:.0f} s", channel, step)
            if sign.operations < operation and now - sign.moved_s > self.limit_s:
                alive = "silent" if self._is_silent(peer) else "alive but stuck"
                self._condemn(f"rank {peer} {alive} for {now - sign.moved_s:.0f} s", channel, step)

    def broken(self, channel: str, step: int, error: str) -> PeerLost:
        """A connection broke: find out whose, within a few beats."""
        deadline = time.monotonic() + SILENCE_S + 3 * BEAT_S
        while self._verdict is None and time.monotonic() < deadline:
            silent = self._silent_for(SILENCE_S)
            if silent:
                try:
                    self._condemn(f"rank {silent[0]} gone", channel, step)
                except PeerLost as lost:
                    return lost
            time.sleep(BEAT_S / 10)
        if self._verdict is not None:
            return PeerLost(self._verdict)
        return PeerLost(f"a connection broke on channel {channel!r} in step {step}, though all ranks live: {error}")

    def _condemn(self, what: str, channel: str, step: int) -> None:
        alive = [peer for peer in range(self.world_size) if peer == self.rank or not self._is_silent(peer)]
        verdict = f"{what}, on channel {channel!r} in step {step}; alive: {alive}"
        try:
            # The first to say so decides the words.
            self._verdict = self._store.compare_set(self._verdict_key(), "", verdict).decode()
        except RuntimeError:
            self._verdict = verdict
        raise PeerLost(self._verdict)

    def _silent_for(self, seconds: float) -> Sequence[int]:
        now = time.monotonic()
        return [
            peer
            for peer, sign in enumerate(self._signs)
            if peer != self.rank and (now - sign.heard_s > seconds or sign.text.startswith(LEFT))
        ]

    def _is_silent(self, peer: int) -> bool:
        return peer in self._silent_for(SILENCE_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(RuntimeError):  # the store does not answer: the others' silence will say it
                self._beat()
            self._stop.wait(BEAT_S)

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(self._key(self.rank), f"{self._beats} {self.operations}")
        keys = [self._key(peer) for peer in range(self.world_size)]
        texts = [text.decode() for text in self._store.multi_get(keys)]
        now = time.monotonic()
        for sign, text in zip(self._signs, texts, strict=True):
            operations = int(text.split()[1])
            if operations > sign.operations:
                sign.operations, sign.moved_s = operations, now
            if text != sign.text:
                sign.text, sign.heard_s = text, now
        if self._verdict is None and self._store.check([self._verdict_key()]):
            self._verdict = self._store.get(self._verdict_key()).decode()

    def _key(self, rank: int) -> str:
        return f"pulse/{rank}"

    def _verdict_key(self) -> str:
        return "pulse/lost"
