"""A folder for what need not outlive its process: gone when its block ends, by SIGTERM too.

What SIGKILL leaves the next such folder sweeps. A folder is locked while its process lives, and the kernel unlocks it
when that dies: process ids mean nothing where containers share one temporary folder.
"""

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

PREFIX = "thinwire-scratch-"


@contextmanager
def scratch_folder(what: str) -> Iterator[Path]:
    """`what` is part of its name, for whoever looks into the temporary folder."""
    _sweep()
    with sigterm_as_exit():
        folder, lock = _made(f"{PREFIX}{what}-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that blocks are left and ranks are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _made(prefix: str) -> tuple[Path, int]:
    """A new one, locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # swept before it could be locked
            continue
        with suppress(OSError):  # a file system without locks: nobody else can lock it either, and so nobody sweeps
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # else somebody swept it just before it was locked
            return folder, lock
        os.close(lock)


def _sweep() -> None:
    """Remove those that nobody has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, a link, in use, or swept by another process at this moment
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
