"""Threads that wait for gloo's point-to-point messages, which give no future.

A thread is used again, since to start one takes as long as a small message. The library's pools have a most, and queue
what is more. Here every piece of work gets a thread at once: pieces wait for other ranks, and behind a queue two ranks
could wait for each other for ever.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue


class ThreadPool:
    """As many threads as there have ever been pieces of work at the same time."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def do(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._run, name="thinwire-transfer", daemon=True)
                thread.start()
                self._threads.append(thread)
        self._work.put(work)

    def close(self, patience_s: float) -> None:
        """End the threads that are idle or soon will be. Those that hang on a lost rank are left behind."""
        deadline = time.monotonic() + patience_s
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # and what it holds: an idle thread keeps no buffers
            with self._lock:
                self._idle += 1
