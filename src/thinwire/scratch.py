"""A folder for files that need not outlive their process. It is removed when its block ends, also by SIGTERM.

Folders that SIGKILL leaves are removed when the next one is made. A folder is locked while its process lives, and the
kernel unlocks it when the process dies. Process ids would not do: containers may share one temporary folder.
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
    """A scratch folder for the block; `what` is part of its name, to recognise it in the temporary folder."""
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
    """Inside the block SIGTERM unwinds the stack as Ctrl-C does, so that clean-up runs and ranks are ended."""
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
    """A new folder, locked, and the file descriptor that holds the lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process swept it before it was locked
            continue
        with suppress(OSError):  # a file system without locks: no process can lock there, so none sweeps
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # otherwise another process swept it just before it was locked
            return folder, lock
        os.close(lock)


def _sweep() -> None:
    """Remove scratch folders that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, a link, locked, or just swept by another process
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
