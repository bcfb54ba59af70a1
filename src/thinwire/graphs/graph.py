"""A graph with features, labels and a split: plain numpy arrays, perhaps memory-mapped, checked before use."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

TRAIN, VALIDATION, TEST, UNUSED = range(4)
SPLITS = ("train", "validation", "test", "unused")
# Edges looked at in one go: bounds the memory that looking takes.
CHUNK = 1 << 22


class GraphError(ValueError):
    """Data that can't be right. The message names the file, the array and the first offending index."""


@dataclass(frozen=True)
class Graph:
    """N nodes, E directed edges. An undirected graph has each edge in both directions."""

    edge_index: Array  # integer [2, E], messages flow from edge_index[0] to edge_index[1]
    x: Array  # float [N, D]
    y: Array  # integer [N], a class each; or [N, C] of zeros and ones
    split: Array  # uint8 [N]: TRAIN, VALIDATION, TEST, UNUSED
    edge_weight: Array | None = None  # float [E]
    edge_attr: Array | None = None  # float [E, F]
    classes: tuple[str, ...] = ()
    source: str = "graph"  # where it came from, for error messages

    @property
    def num_nodes(self) -> int:
        return int(self.x.shape[0])

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])

    @property
    def multi_label(self) -> bool:
        return self.y.ndim == 2

    @property
    def num_classes(self) -> int:
        if self.multi_label:
            return int(self.y.shape[1])
        return max(len(self.classes), int(self.y.max()) + 1 if len(self.y) else 0)

    @property
    def nbytes(self) -> int:
        optional = [array for array in (self.edge_weight, self.edge_attr) if array is not None]
        return sum(array.nbytes for array in (self.edge_index, self.x, self.y, self.split, *optional))

    def edge_chunks(self) -> Iterator[tuple[Array, Array]]:
        """Sources and targets, CHUNK edges at a time."""
        for start in range(0, self.num_edges, CHUNK):
            chunk = np.asarray(self.edge_index[:, start : start + CHUNK])
            yield chunk[0], chunk[1]


def check(graph: Graph) -> Graph:
    """The graph, checked, in the types that the rest of the code expects. GraphError where it can't be right."""
    _check_shapes(graph)
    _check_ids(graph)
    graph = _normal(graph)
    _check_values(graph)
    return replace(graph, y=graph.y.astype(np.uint8)) if graph.multi_label else graph


def _normal(graph: Graph) -> Graph:
    """Native byte order, signed ids and labels, float32 or less. Copies only the arrays that are not so."""
    changed: dict[str, Array | None]
    with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, which the check refuses
        changed = {name: _thin(getattr(graph, name)) for name in ("x", "edge_weight", "edge_attr")}
    changed |= {
        "edge_index": graph.edge_index.astype(_signed(graph.edge_index), copy=False),
        "y": graph.y.astype(_signed(graph.y), copy=False),
        "split": graph.split.astype(_signed(graph.split), copy=False),
    }
    return replace(graph, **changed)  # type: ignore[arg-type]


def _thin(array: Array | None) -> Array | None:
    if array is None:
        return None
    return array.astype(np.float16 if array.dtype.itemsize == 2 else np.float32, copy=False)


def _signed(array: Array) -> Any:
    if array.dtype.kind == "i":
        return array.dtype.newbyteorder("=")
    return np.int64


def _check_shapes(graph: Graph) -> None:
    edges, nodes = graph.edge_index, graph.x
    if nodes.ndim != 2 or nodes.dtype.kind != "f":
        raise _error(graph, "x", f"is {_shape(nodes)}; give floats [nodes, features]")
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise _error(graph, "edge_index", f"is {_shape(edges)}; give integers [2, edges]")
    if graph.y.ndim not in (1, 2) or graph.y.dtype.kind not in "iub":
        raise _error(graph, "y", f"is {_shape(graph.y)}; give integers [nodes], or zeros and ones [nodes, classes]")
    if graph.split.ndim != 1 or graph.split.dtype.kind not in "iu":
        # A mask of training nodes would be read the wrong way round.
        raise _error(graph, "split", f"is {_shape(graph.split)}; give 0 train, 1 validation, 2 test, 3 unused [nodes]")
    for name in ("y", "split"):
        if (size := len(getattr(graph, name))) != graph.num_nodes:
            raise _error(graph, name, f"has {size} rows and x has {graph.num_nodes}; give one for each node")
    for name, dimensions in (("edge_weight", 1), ("edge_attr", 2)):
        array = getattr(graph, name)
        if array is None:
            continue
        if array.ndim != dimensions or array.dtype.kind != "f":
            raise _error(graph, name, f"is {_shape(array)}; give floats with {dimensions} dimension(s)")
        if len(array) != graph.num_edges:
            raise _error(graph, name, f"has {len(array)} rows for {graph.num_edges} edges; give one for each edge")


def _check_ids(graph: Graph) -> None:
    start = 0
    for ends in graph.edge_chunks():
        for row, ids in enumerate(ends):
            if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= graph.num_nodes):
                place = int(np.argmax((ids < 0) | (ids >= graph.num_nodes)))
                raise _error(
                    graph,
                    f"edge_index[{row}, {start + place}]",
                    f"is {ids[place]}; nodes are numbered 0 to {graph.num_nodes - 1}",
                )
        start += len(ends[0])


def _check_values(graph: Graph) -> None:
    for name in ("x", "edge_weight", "edge_attr"):
        array = getattr(graph, name)
        if array is not None and (place := _first_not_finite(array)) is not None:
            raise _error(graph, f"{name}{place}", "is not finite in float32; replace it or drop its row")
    if (wrong := _first((graph.split < 0) | (graph.split > UNUSED))) is not None:
        raise _error(graph, f"split[{wrong}]", f"is {graph.split[wrong]}; give 0 train, 1 validation, 2 test, 3 unused")
    if not (graph.split == TRAIN).any():
        raise _error(graph, "split", "has no training node (0); mark some")
    if graph.multi_label:
        if (wrong := _first(((graph.y != 0) & (graph.y != 1)).any(axis=1))) is not None:
            raise _error(graph, f"y[{wrong}]", "has other values than zeros and ones")
    else:
        most = len(graph.classes) or np.iinfo(np.int32).max
        used = graph.split != UNUSED
        if (wrong := _first(((graph.y < 0) & used) | (graph.y >= most))) is not None:
            raise _error(graph, f"y[{wrong}]", f"is {graph.y[wrong]}; classes are numbered 0 to {most - 1}")
    if graph.classes and graph.num_classes != len(graph.classes):
        raise _error(graph, "classes", f"has {len(graph.classes)} names for {graph.num_classes} classes")


def _first(wrong: Array) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _first_not_finite(array: Array) -> list[int] | None:
    rows = max(1, CHUNK // max(1, array[:1].size))
    for start in range(0, len(array), rows):
        finite = np.isfinite(array[start : start + rows])
        if not finite.all():
            row, *column = np.argwhere(~finite)[0].tolist()
            return [start + row, *column]
    return None


def _shape(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _error(graph: Graph, array: str, what: str) -> GraphError:
    return GraphError(f"{graph.source}: {array} {what}")
