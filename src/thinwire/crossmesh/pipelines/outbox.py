"""Sends from a rank of a pipeline to another stage, one after the other, while it computes.

Two sends at the same time would share the link, and the one that is needed first would arrive as late as the other.
Sends to different stages do overlap: if one waits for its receiver, the others can use the link.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol


class Handle(Protocol):
    """A transfer under way."""

    def wait(self) -> Any: ...


Ended = Callable[[float, float], None]


class Outbox:
    """A thread that starts the next send when the last has ended. An error is raised by the next call."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Handle], Ended | None] | None] = SimpleQueue()
        self._lock = threading.Condition()
        self._left = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, start: Callable[[], Handle], ended: Ended | None = None) -> None:
        """Queue a send. `start` posts it on the outbox's thread; `ended` gets the times at which it began and ended."""
        self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="thinwire-outbox", daemon=True)
            self._thread.start()
        with self._lock:
            self._left += 1
        self._queue.put((start, ended))

    def settle(self) -> None:
        """Wait until all has been sent."""
        with self._lock:
            self._lock.wait_for(lambda: self._left == 0 or self._error is not None)
        self._raise()

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            start, ended = entry
            try:
                if self._error is None:
                    begun_s = time.perf_counter()
                    start().wait()
                    if ended is not None:
                        ended(begun_s, time.perf_counter())
            except BaseException as raised:
                self._error = raised
            del entry, start  # frees the tensor it holds
            with self._lock:
                self._left -= 1
                self._lock.notify_all()
