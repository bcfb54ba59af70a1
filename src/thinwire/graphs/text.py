"""Graphs from text: an edge list, and a table of nodes with features, labels and split.

Edges: a line an edge, `source,target` or `source,target,weight`, by commas, tabs or blanks; a header and lines that
begin with # are passed over. Nodes: a CSV with a header; the columns `id`, `label` and `split` are what they say, all
others are features. Without `id` the rows are nodes 0, 1, ...; labels may be words.
"""

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from thinwire.graphs.files import class_names, read_arrays
from thinwire.graphs.graph import SPLITS, Array, Graph, GraphError

SUFFIXES = (".csv", ".tsv", ".txt", ".edges")
# With or without the mark that some programs put first.
ENCODING = "utf-8-sig"
WHOLE = re.compile(r"-?[0-9]{1,18}")


class Nodes(NamedTuple):
    """A table of nodes; `ids` are what edges call them, None where they are row numbers."""

    x: Array
    y: Array
    split: Array
    classes: tuple[str, ...]
    ids: Array | None


def read_edge_list(edges: Path, nodes: Path) -> Graph:
    try:
        table = _read_nodes(nodes)
    except UnicodeDecodeError as error:
        raise GraphError(f"{nodes}: not UTF-8 ({error}); save it as UTF-8") from None
    try:
        edge_index, edge_weight = _read_edges(edges)
    except UnicodeDecodeError as error:
        raise GraphError(f"{edges}: not UTF-8 ({error}); save it as UTF-8") from None
    if table.ids is not None:
        edge_index = _renumber(edges, edge_index, table.ids, nodes)
    source = f"{edges} with {nodes}"
    return Graph(
        edge_index, table.x, table.y, table.split, edge_weight=edge_weight, classes=table.classes, source=source
    )


def _read_edges(path: Path) -> tuple[Array, Array | None]:
    def lines() -> Iterator[str]:
        with path.open(encoding=ENCODING) as file:
            yield from (line for line in file if line.strip() and not line.startswith("#"))

    first = next(iter(lines()), "")
    words = first.replace(",", " ").split()
    header = bool(words) and not any(map(_is_number, words))
    sample = next(itertools.islice(lines(), int(header), None), "")
    words = sample.replace(",", " ").split()
    if not words:
        return np.empty((2, 0), dtype=np.int64), None
    if len(words) not in (2, 3):
        raise GraphError(
            f"{path}: {len(words)} columns in {sample.strip()!r}; give source, target and perhaps a weight"
        )
    columns = [("source", np.int64), ("target", np.int64), ("weight", np.float64)][: len(words)]
    try:
        rows = itertools.islice(lines(), int(header), None)
        table = np.loadtxt(rows, delimiter="," if "," in sample else None, ndmin=1, dtype=np.dtype(columns))
    except ValueError as error:
        raise GraphError(f"{path}: {error}; give a line an edge, ids whole, for example 0,1 or 0,1,0.5") from None
    weight = table["weight"].astype(np.float32) if len(words) == 3 else None
    return np.stack((table["source"], table["target"])), weight


def _read_nodes(path: Path) -> Nodes:
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        if missing := [name for name in ("x", "y", "split") if name not in arrays]:
            raise GraphError(f"{path}: no {', '.join(missing)}; a table of nodes needs x, y and split")
        return Nodes(arrays["x"], arrays["y"], arrays["split"], class_names(str(path), arrays.get("classes")), None)
    with path.open(newline="", encoding=ENCODING) as file:
        reader = csv.reader(file)
        header = [word.strip() for word in next(reader, [])]
        rows = [row for row in reader if row]
    if "label" not in header or "split" not in header:
        raise GraphError(f"{path}: the header is {header}; name the columns `label` and `split` (perhaps `id`)")
    if twice := [name for name in header if header.count(name) > 1]:
        raise GraphError(f"{path}: two columns are called {twice[0]!r}; rename one")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise GraphError(f"{path}: row {number} has {len(row)} columns, the header {len(header)}")
    columns = {name: [row[place].strip() for row in rows] for place, name in enumerate(header)}
    features = [name for name in header if name not in ("id", "label", "split")]
    x = np.array([_numbers(path, name, columns[name]) for name in features], dtype=np.float32)
    x = np.ascontiguousarray(x.reshape(len(features), len(rows)).T)
    y, classes = _labels(columns["label"])
    ids = _whole(path, "id", columns["id"]) if "id" in columns else None
    split = np.array([_split(path, number, word) for number, word in enumerate(columns["split"])], dtype=np.uint8)
    return Nodes(x, y, split, classes, ids)


def _numbers(path: Path, name: str, words: list[str]) -> Array:
    for number, word in enumerate(words):
        if not _is_number(word):
            raise GraphError(f"{path}: {name}[{number}] is {word!r}; give a number")
    return np.array(words, dtype=np.float64)


def _whole(path: Path, name: str, words: list[str]) -> Array:
    for number, word in enumerate(words):
        if not WHOLE.fullmatch(word):
            raise GraphError(f"{path}: {name}[{number}] is {word!r}; give a whole number of at most 18 digits")
    return np.array([int(word) for word in words], dtype=np.int64)


def _labels(words: list[str]) -> tuple[Array, tuple[str, ...]]:
    if all(WHOLE.fullmatch(word) for word in words):
        return np.array([int(word) for word in words], dtype=np.int64), ()
    classes = sorted(set(words) - {""})
    number_of = {word: number for number, word in enumerate(classes)}
    return np.array([number_of.get(word, -1) for word in words], dtype=np.int64), tuple(classes)


def _split(path: Path, number: int, word: str) -> int:
    if word in SPLITS:
        return SPLITS.index(word)
    if word in ("0", "1", "2", "3"):
        return int(word)
    raise GraphError(f"{path}: split[{number}] is {word!r}; give one of {', '.join(SPLITS)}")


def _renumber(edges: Path, edge_index: Array, ids: Array, nodes: Path) -> Array:
    order = np.argsort(ids, kind="stable")
    if (twice := ids[order][1:] == ids[order][:-1]).any():
        raise GraphError(f"{nodes}: id {ids[order][int(np.argmax(twice))]} stands there twice")
    places = np.searchsorted(ids[order], edge_index).clip(max=max(0, len(ids) - 1))
    unknown = ids[order][places] != edge_index if len(ids) else np.ones_like(edge_index, dtype=bool)
    if unknown.any():
        edge = int(np.argmax(unknown.any(axis=0)))
        raise GraphError(f"{edges}: edge {edge} is {edge_index[:, edge].tolist()}, and {nodes} has no such id")
    return order[places]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
