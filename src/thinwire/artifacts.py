"""Files that stages hand to each other and to programs: JSON, stamped, written whole or not at all."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire import __version__


def stamp(*, seed: int, world_size: int) -> dict[str, Any]:
    """What every artefact says of the run that made it."""
    return {"thinwire": __version__, "seed": seed, "world_size": world_size}


def check_writable(path: Path) -> Path:
    """The file that `path` leads to, links followed. Raises now, not after the work, where it can't be written."""
    target = path.resolve()
    if not target.parent.is_dir():
        raise ValueError(f"{path}: the folder {target.parent} does not exist; create it or name another file")
    if target.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    # /dev/stdout may lead to an ordinary file that somebody else has open: renaming over that would cut it off.
    special = path.absolute().parts[1] in ("dev", "proc", "sys")
    if special or (target.exists() and not target.is_file()):
        raise ValueError(f"{path} is no ordinary file, and a new file would take its place; name another")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise ValueError(f"{path} is not yours to write; name a file in a folder that is")
    return target


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write to a file beside `path` and rename it, so that a reader sees the old content or the new, never half."""
    path = check_writable(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
