"""How a process that has joined a job ends after an error: as Python ends, but not by way of what would hang or abort.

gloo has no way to give an operation up. One that waits for a rank which never comes keeps a thread in C++ for minutes:
taking its group down waits for that thread, and where it comes back while the interpreter ends, it aborts the process.
So after an error the group is never taken down. Where all transfers have ended, Python then ends by itself. Where one
hangs, all that is registered with atexit is called, a fork, which has none of those threads, ends as Python does, and
this process leaves at once with the exit code of that.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
import warnings

# What transfers are given to end by themselves: other ranks that leave for the same error break their connections.
PATIENCE_S = 2.0
# What the fork is given. It has nothing to wait for.
FORK_S = 5.0
LOOK_S = 0.02
THREADS = "thinwire-"  # how names of threads begin that may be in C++


class UnderWay:
    """How many transfers of all doors have begun and not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def begins(self) -> None:
        with self._lock:
            self.count += 1

    def ends(self) -> None:
        with self._lock:
            self.count -= 1


transfers = UnderWay()


def after_error(*kept: object) -> None:
    """Have this process end well whatever still hangs. `kept` lives as long as the process."""
    for each in kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    atexit.register(leave)


def leave() -> None:
    """End this process now, if a transfer still hangs after a while; else return, for Python to end it."""
    deadline = time.monotonic() + PATIENCE_S
    while hanging := _hangs():
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    if not hanging:
        return
    # Those that are registered still; later ones have been called before us.
    atexit.unregister(leave)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    failed = int(hasattr(sys, "last_value"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is why we fork
        child = os.fork()
    if child:
        os._exit(_code_of(child, otherwise=failed))


def _hangs() -> bool:
    return transfers.count > 0 or any(thread.name.startswith(THREADS) for thread in threading.enumerate())


def _code_of(child: int, *, otherwise: int) -> int:
    """With which it ended; `otherwise` where it did not end in time, or not by itself."""
    deadline = time.monotonic() + FORK_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else otherwise
        time.sleep(LOOK_S)
    os.kill(child, signal.SIGKILL)
    return otherwise
