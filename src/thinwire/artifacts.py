"""Files that stages hand to each other and to other programs: stamped JSON, written whole or not at all."""

import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from thinwire import __version__

# Constants of Linux's renameat2.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def stamp(*, seed: int, world_size: int) -> dict[str, Any]:
    """What every artefact tells about the run that made it."""
    return {"thinwire": __version__, "seed": seed, "world_size": world_size}


def check_writable(path: Path) -> Path:
    """The file that `path` leads to, with links followed. Raises if it can't be written: now, not after the work."""
    target = path.resolve()
    if not target.parent.is_dir():
        raise ValueError(f"{path}: the folder {target.parent} does not exist; create it or name another file")
    if target.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    # /dev/stdout may lead to an ordinary file that another process has open: a rename over it would cut that one off.
    special = path.absolute().parts[1] in ("dev", "proc", "sys")
    if special or (target.exists() and not target.is_file()):
        raise ValueError(f"{path} is no ordinary file, and a new file would take its place; name another")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise ValueError(f"{path} is not yours to write; name a file in a folder that is")
    return target


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    with new_file(path) as file:
        file.write(json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with a checksum of its content, so that reading it detects a change or damage."""
    content = json.loads(json.dumps(content))  # the checksum is of the content as it will be read
    write_json(path, {**content, "checksum": _checksum(content)})


def read_sealed(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Read what `write_sealed` wrote, with this `format` and `version`. A ValueError names the file and the problem."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not sound JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise ValueError(f"{path}: this is no {kind}")
    if content.get("version") != version:
        raise ValueError(f"{path}: format version {content.get('version')}, this thinwire reads {version}")
    if content.get("checksum") != _checksum({name: value for name, value in content.items() if name != "checksum"}):
        raise ValueError(f"{path}: does not match its own checksum; it was changed or damaged")
    return content


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside `path`, renamed to it at the end: a reader sees the old or the new content, never half."""
    path = check_writable(path)
    temporary = _beside(path)
    # A new file's mode follows the umask, as any other's. If it replaces a file, it takes that file's mode below.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _beside(path: Path, prefix: str = "") -> Path:
    """A hidden name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{prefix}{secrets.token_hex(8)}")


def check_folder(path: Path, known: Callable[[str], bool]) -> Path:
    """The folder that `path` leads to. Raises if it is no folder, is not writable or has a file that is not `known`."""
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise ValueError(f"{path} is no folder; name another")
    for entry in sorted(target.iterdir()) if target.exists() else []:
        if not known(entry.name):
            raise ValueError(f"{path} holds something else, {entry.name}; name another folder, or remove that")
    here = Path.cwd()
    if target == here or target in here.parents:
        raise ValueError(f"{path} is where you are, and would be replaced; name a folder in it")
    above = next(folder for folder in target.parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"{path}: {above} is not yours to write; name another folder")
    return target


@contextmanager
def new_folder(path: Path, known: Callable[[str], bool]) -> Iterator[Path]:
    """A folder beside `path` that takes its place at the end. Files in the old folder must be `known` by name: it goes.

    The exchange is one step if the system can exchange two names, as Linux can on its own file systems: then a crash
    leaves the old folder or the new one.
    """
    path = check_folder(path, known)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = _beside(path, f"{os.getpid()}.{socket.gethostname()}.")
    temporary.mkdir()
    try:
        yield temporary
        by_umask = temporary.stat().st_mode & 0o666
        for written in temporary.iterdir():
            written.chmod(by_umask)  # the writer may have set a stricter mode
            _sync(written)
        _sync(temporary)
        if path.exists():
            _exchange(temporary, path)
        else:
            temporary.replace(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after an exchange, this is the old folder


def _sweep(path: Path) -> None:
    """Remove the half-written folders that killed processes left beside `path`."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        owner, _, host = leftover.name.removeprefix(f".{path.name}.").partition(".")
        if not host.startswith(f"{socket.gethostname()}."):  # another machine's, on a shared disk
            continue
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(leftover, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(first: Path, second: Path) -> None:
    if _renameat2(first, second):
        return
    # If the system can't exchange two names, there is a moment without `second`.
    aside = first.with_name(first.name + ".old")
    second.rename(aside)
    try:
        first.rename(second)
    except BaseException:
        aside.rename(second)
        raise
    aside.rename(first)


def _renameat2(first: Path, second: Path) -> bool:
    """Exchange the two names in one step; False if the system can't."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))
