"""What a rank of a pipeline has to send to another stage, one after the other, beside its computation.

Two at a time would share the link, and what is needed first would arrive as late as the other. Sends to different
stages do go at a time: one of them may be held back at its receiver, and the others then have the link.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol


class Handle(Protocol):
    """Something on its way."""

    def wait(self) -> Any: ...


Ended = Callable[[float, float], None]


class Outbox:
    """A thread that starts the next send when the last has ended. An error is raised by whoever calls next."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Handle], Ended | None] | None] = SimpleQueue()
        self._lock = threading.Condition()
        self._left = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, start: Callable[[], Handle], ended: Ended | None = None) -> None:
        """`start` posts a send, on the outbox's thread; `ended` gets when it was posted and when it was over."""
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
            del entry, start  # and the tensor it holds
            with self._lock:
                self._left -= 1
                self._lock.notify_all()
