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


def check_writable(path: Path) -> None:
    """Raise now rather than after the work, where `path` can't be written."""
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist; create it or name another file")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write to a file beside `path` and rename it, so that a reader sees the old content or the new, never half."""
    check_writable(path)
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
