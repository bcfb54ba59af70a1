"""Ends a process that has joined a job after an error: like Python's own end, but without what would hang or abort.

gloo can't cancel an operation. An operation that waits for a lost rank keeps a thread in C++ for minutes. Destroying
its process group would wait for that thread; and if the thread returns while the interpreter ends, it aborts the
process. So after an error the group is never destroyed. If all transfers have ended, Python ends by itself. If one
hangs, all functions registered with atexit are called. Then a fork, which has none of those threads, ends as Python
does, and this process leaves at once with the fork's exit code.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
import warnings

# Time for transfers to end by themselves: they do when other ranks leave for the same error and connections break.
PATIENCE_S = 2.0
# Time for the fork to end. It has nothing to wait for.
FORK_S = 5.0
LOOK_S = 0.02
THREADS = "thinwire-"  # prefix of the names of threads that may be in C++


class UnderWay:
    """Counts what has begun and not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def begins(self) -> None:
        with self._lock:
            self.count += 1

    def ends(self) -> None:
        with self._lock:
            self.count -= 1

    def wait(self, limit_s: float) -> None:
        """Until nothing is under way, but not longer than this."""
        deadline = time.monotonic() + limit_s
        while self.count and time.monotonic() < deadline:
            time.sleep(LOOK_S / 20)


transfers = UnderWay()  # of all doors


def after_error(*kept: object) -> None:
    """Let this process end even if transfers hang. The objects in `kept` live as long as the process."""
    for kept_object in kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept_object))
    atexit.register(leave)


def leave() -> None:
    """End this process now if a transfer still hangs after `PATIENCE_S`; otherwise return, and Python ends it."""
    deadline = time.monotonic() + PATIENCE_S
    while hanging := _hangs():
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    if not hanging:
        return
    # Calls the functions still registered. Those registered later than this one have been called before it.
    atexit.unregister(leave)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    failed = int(hasattr(sys, "last_value"))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # it warns of forking with threads, and threads are why we fork
        child = os.fork()
    if child:
        os._exit(_code_of(child, otherwise=failed))


def _hangs() -> bool:
    return transfers.count > 0 or any(thread.name.startswith(THREADS) for thread in threading.enumerate())


def _code_of(child: int, *, otherwise: int) -> int:
    """The child's exit code; `otherwise` if it did not end in time or was killed by a signal."""
    deadline = time.monotonic() + FORK_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else otherwise
        time.sleep(LOOK_S)
    os.kill(child, signal.SIGKILL)
    return otherwise
