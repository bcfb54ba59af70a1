"""Graphs from text: an edge list, and a table of nodes with features, labels and split.

Edges: a line an edge, `source,target` or `source,target,weight`, by commas, tabs or blanks; a header and lines that
begin with # are passed over. Nodes: a CSV with a header; the columns `id`, `label` and `split` are what they say, all
others are features. Without `id` the rows are nodes 0, 1, ...; labels may be words.
"""

import csv
import itertools
from pathlib import Path

import numpy as np

from thinwire.graphs.files import read_arrays
from thinwire.graphs.graph import SPLITS, Array, Graph, GraphError

SUFFIXES = (".csv", ".tsv", ".txt", ".edges")


def read_edge_list(edges: Path, nodes: Path) -> Graph:
    x, y, split, classes, ids = _read_nodes(nodes)
    edge_index, edge_weight = _read_edges(edges)
    if ids is not None:
        edge_index = _renumber(edges, edge_index, ids, nodes)
    return Graph(edge_index, x, y, split, edge_weight=edge_weight, classes=classes, source=str(edges))


def _read_edges(path: Path) -> tuple[Array, Array | None]:
    with path.open() as file:
        first = next((line for line in file if line.strip() and not line.startswith("#")), "")
    separator = "," if "," in first else None
    words = first.replace(",", " ").split()
    header = bool(words) and not _is_number(words[0])
    if words and len(words) not in (2, 3):
        raise GraphError(f"{path}: {len(words)} columns in {first.strip()!r}; give source, target and perhaps a weight")
    if not words:
        return np.empty((2, 0), dtype=np.int64), None
    try:
        with path.open() as file:
            rows = (line for line in file if line.strip() and not line.startswith("#"))
            table = np.loadtxt(
                itertools.islice(rows, int(header), None), delimiter=separator, ndmin=2, dtype=np.float64
            )
    except ValueError as error:
        raise GraphError(f"{path}: {error}; give a line an edge, for example 0,1 or 0,1,0.5") from None
    if not len(table):
        return np.empty((2, 0), dtype=np.int64), None
    ends = table[:, :2]
    if (wrong := (ends != np.floor(ends)).any(axis=1)).any():
        raise GraphError(
            f"{path}: edge {int(np.argmax(wrong))} has {ends[np.argmax(wrong)].tolist()}; ids are whole numbers"
        )
    weight = table[:, 2].astype(np.float32) if table.shape[1] == 3 else None
    return np.ascontiguousarray(ends.T).astype(np.int64), weight


def _read_nodes(path: Path) -> tuple[Array, Array, Array, tuple[str, ...], Array | None]:
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        if missing := [name for name in ("x", "y", "split") if name not in arrays]:
            raise GraphError(f"{path}: no {', '.join(missing)}; a table of nodes needs x, y and split")
        classes = tuple(str(name) for name in arrays["classes"].tolist()) if "classes" in arrays else ()
        return arrays["x"], arrays["y"], arrays["split"], classes, None
    with path.open(newline="") as file:
        reader = csv.reader(file)
        header = [word.strip() for word in next(reader, [])]
        rows = [row for row in reader if row]
    if "label" not in header or "split" not in header:
        raise GraphError(f"{path}: the header is {header}; name the columns `label` and `split` (perhaps `id`)")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise GraphError(f"{path}: row {number} has {len(row)} columns, the header {len(header)}")
    columns = {name: [row[place].strip() for row in rows] for place, name in enumerate(header)}
    features = [name for name in header if name not in ("id", "label", "split")]
    x = np.array([_numbers(path, name, columns[name]) for name in features], dtype=np.float32)
    y, classes = _labels(columns["label"])
    ids = _numbers(path, "id", columns["id"]).astype(np.int64) if "id" in columns else None
    split = np.array([_split(path, number, word) for number, word in enumerate(columns["split"])], dtype=np.uint8)
    return np.ascontiguousarray(x.reshape(len(features), len(rows)).T), y, split, classes, ids


def _numbers(path: Path, name: str, words: list[str]) -> Array:
    for number, word in enumerate(words):
        if not _is_number(word):
            raise GraphError(f"{path}: {name}[{number}] is {word!r}; give a number")
    return np.array(words, dtype=np.float64)


def _labels(words: list[str]) -> tuple[Array, tuple[str, ...]]:
    if all(word.lstrip("-").isdigit() for word in words):
        return np.array(words, dtype=np.int64), ()
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
