"""Network namespaces: enter one, from a process or for one block on a thread."""

import ctypes
import os

CLONE_NEWNET = 0x40000000
FOLDER = "/run/netns"


def enter_namespace(name: str) -> None:
    """Move the calling thread, and whatever it starts from now on, into the network namespace `name`."""
    handle = os.open(f"{FOLDER}/{name}", os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"can't enter network namespace {name}: {os.strerror(error)}")
    finally:
        os.close(handle)
