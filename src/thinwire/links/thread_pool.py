"""Threads for what gives no future of its own: gloo's point-to-point messages. They stay, and are used again.

Starting one costs as much as a small message takes. There is always one for each piece of work at hand, since pieces
wait for other ranks, and a queue in front of them could wait in a circle.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class ThreadPool:
    """As many threads as there was ever work at a time."""

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
        """Let go those that are idle or soon will be; one that hangs on a lost rank is left behind."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(patience_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # and what it holds: an idle thread keeps no buffers
            with self._lock:
                self._idle += 1
