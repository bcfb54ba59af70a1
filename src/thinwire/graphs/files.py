"""The project's own graph format: an .npz file, or a folder of .npy files of the same names, which is memory-mapped.

Read without pickle, and against the archive's own checksums; written to a temporary name and renamed.
"""

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from thinwire import artifacts
from thinwire.graphs.graph import Array, Graph, GraphError

NEEDED = ("edge_index", "x", "y", "split")
OPTIONAL = ("edge_weight", "edge_attr", "classes")


def read_npz(path: Path) -> Graph:
    return _graph(str(path), read_arrays(path))


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of an .npz, each checked against its checksum before it is parsed."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
            if bad is not None:
                raise GraphError(f"{path}: {bad} does not match its checksum; copy the file again")
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in (*NEEDED, *OPTIONAL) if name in content.files}
    except FileNotFoundError:
        raise
    except GraphError:
        raise
    except _BROKEN as error:
        raise GraphError(f"{path}: not a sound .npz file ({error}); copy or write it again") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise GraphError(f"{path}: {name} is no array; write the file with numpy.savez")
    return arrays


def read_folder(folder: Path) -> Graph:
    return _graph(
        str(folder), {name: read_npy(path) for name in (*NEEDED, *OPTIONAL) if (path := _npy(folder, name)).exists()}
    )


def read_npy(path: Path) -> Array:
    """Memory-mapped: only what is used is read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise GraphError(f"{path}: not a sound .npy file ({error}); copy or write it again") from error


def write_npz(path: Path, graph: Graph) -> None:
    with artifacts.new_file(path) as file:
        np.savez(file, **_arrays(graph))  # type: ignore[arg-type]


def write_folder(folder: Path, graph: Graph) -> None:
    with artifacts.new_folder(folder, lambda name: name.removesuffix(".npy") in (*NEEDED, *OPTIONAL)) as new:
        for name, array in _arrays(graph).items():
            np.save(_npy(new, name), array, allow_pickle=False)


# What zipfile, zlib and numpy raise on damaged input.
_BROKEN = (
    ValueError,
    OSError,
    AttributeError,
    EOFError,
    tokenize.TokenError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
)


def _graph(source: str, arrays: dict[str, Array]) -> Graph:
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise GraphError(f"{source}: no {', '.join(missing)}; a graph needs {', '.join(NEEDED)} (docs/graphs.md)")
    names = class_names(source, arrays.get("classes"))
    optional = {name: arrays.get(name) for name in ("edge_weight", "edge_attr")}
    return Graph(**{name: arrays[name] for name in NEEDED}, **optional, classes=names, source=source)  # type: ignore[arg-type]


def class_names(source: str, classes: Array | None) -> tuple[str, ...]:
    if classes is None:
        return ()
    if classes.ndim != 1 or classes.dtype.kind != "U":
        raise GraphError(f"{source}: classes is {classes.dtype} {list(classes.shape)}; give strings [classes]")
    return tuple(classes.tolist())


def _arrays(graph: Graph) -> dict[str, Array]:
    arrays: dict[str, Any] = {name: getattr(graph, name) for name in (*NEEDED, "edge_weight", "edge_attr")}
    if graph.classes:
        arrays["classes"] = np.array(graph.classes)
    return {name: array for name, array in arrays.items() if array is not None}


def _npy(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"
