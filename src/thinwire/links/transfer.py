"""What an operation of the door returns: bytes under way, and their result once they are here."""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from thinwire import leaving
from thinwire.links.books import Books
from thinwire.links.event_log import Entry, Moment
from thinwire.links.heartbeat import Heartbeat, Waiting

T = TypeVar("T")

# How often a waiting rank looks whether somebody is lost.
LOOK_S = 0.1
# Words in what gloo and NCCL say when the other end is gone. Any other error is a mistake here and is raised as it is.
BROKEN = ("onnection", "ocket", "imed out", "imeout", "roken pipe", "emote", "ncclSystemError")


class Transfer(Generic[T]):
    """`wait` gives the result, or raises PeerLost."""

    def __init__(
        self, books: Books, heartbeat: Heartbeat, waiting: Waiting, finish: Callable[[], T], entry: Entry | None = None
    ) -> None:
        self._books = books
        self._heartbeat = heartbeat
        self.waiting = waiting
        self._finish = finish
        self._entry = entry  # in the event log, if there is one
        self._posted_s = time.perf_counter()
        self.seconds = 0.0  # from posting to completion, once it has ended
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._ending = False
        self._pass_on: Callable[[T], None] | None = None
        self._error: BaseException | None = None
        leaving.transfers.begins()
        # On CUDA: what the caller's stream has to wait for.
        self.streamed: list[Any] = []

    def wait(self, *, behind: bool = False) -> T:
        """The result. `behind` where a thread waits while this rank computes: that time does not count as exposed."""
        begun = None if self._entry is None else Moment.now()
        start = time.perf_counter()
        try:
            while not self._ended.wait(LOOK_S):
                self._heartbeat.check(self.waiting)
        finally:
            if not behind:
                self._books.waited(self.waiting.channel, time.perf_counter() - start)
            if self._entry is not None and begun is not None:
                self._entry.waits.append((begun, Moment.now()))
        if self._error is not None:
            if not any(word in str(self._error) for word in BROKEN):
                raise self._error
            raise self._heartbeat.broken(self.waiting, str(self._error)) from self._error
        for work in self.streamed:
            work.wait()
        return self._finish()

    def then(self, pass_on: Callable[[T], None]) -> None:
        """Call this with the result once it is here, on the thread that sees it; `wait` returns after that."""
        with self._lock:
            if not self._ended.is_set() and not self._ending:
                self._pass_on = pass_on
                return
        self._ended.wait()
        if self._error is None:
            pass_on(self._finish())

    def end(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._ending = True
        self._error = error
        if error is None and self._pass_on is not None:
            try:
                self._pass_on(self._finish())
            except BaseException as raised:
                self._error = raised
        self.seconds = time.perf_counter() - self._posted_s
        self._books.finished(self.waiting.channel, self.seconds)
        if self._entry is not None:
            self._entry.ended_s = self._posted_s + self.seconds
        self._heartbeat.ends(self.waiting.size_bytes)
        leaving.transfers.ends()
        self._ended.set()
