"""Which part owns a node: by METIS, at random, in ranges, or as a user's file says; and how good that is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thinwire.graphs import metis
from thinwire.graphs.files import read_npy
from thinwire.graphs.graph import TRAIN, VALIDATION, Array, Graph, GraphError


@dataclass(frozen=True)
class Settings:
    """How to partition. The manifest keeps it."""

    parts: int
    method: str = "metis"
    objective: str = "volume"  # METIS minimises halo rows ("volume") or edges between parts ("cut")
    seed: int = 0
    thorough: bool = False  # METIS sees every edge of a large graph, not a sample


def assign(graph: Graph, settings: Settings) -> Array:
    """int32 [N], the part that owns each node."""
    if settings.parts < 1:
        raise ValueError(f"parts is {settings.parts}; give 1 or more")
    if settings.parts > MOST_PARTS:
        raise ValueError(f"parts is {settings.parts}; give at most {MOST_PARTS}")
    if settings.objective not in metis.OBJECTIVES:
        raise ValueError(f"objective is {settings.objective!r}; give one of {', '.join(metis.OBJECTIVES)}")
    if settings.method not in METHODS:
        raise ValueError(f"method is {settings.method!r}; give one of {', '.join(METHODS)}")
    return METHODS[settings.method](graph, settings)


def read_assignment(path: Path, graph: Graph, parts: int) -> Array:
    """A user's own assignment of nodes to parts: .npy, or text with a line a node."""
    try:
        part_N = read_npy(path) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64, ndmin=1)
    except ValueError as error:
        raise GraphError(f"{path}: {error}; give a whole number a line, a line a node") from None
    if part_N.shape != (graph.num_nodes,) or part_N.dtype.kind not in "iu":
        raise GraphError(
            f"{path}: {part_N.dtype} {list(part_N.shape)}; give an integer for each of {graph.num_nodes} nodes"
        )
    wrong = (part_N < 0) | (part_N >= parts)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise GraphError(f"{path}: node {place} is in part {part_N[place]}; parts are 0 to {parts - 1}")
    return part_N.astype(np.int32)


def _by_metis(graph: Graph, settings: Settings) -> Array:
    """Training, validation and other nodes and degrees balanced, each to 0.1 % if it can be, as SALIENT++ has it."""
    if graph.num_nodes < LEAST_NODES * settings.parts or settings.parts == 1:
        return _in_ranges(graph, settings)
    low, high = pairs(graph)
    degrees = np.bincount(low, minlength=graph.num_nodes) + np.bincount(high, minlength=graph.num_nodes)
    if not settings.thorough and len(low) > SPARSE_FROM:
        low, high = _sparsified(low, high, degrees, settings.seed)
    indptr, indices = both_ways(low, high, graph.num_nodes)
    del low, high
    kinds = (graph.split == TRAIN, graph.split == VALIDATION, graph.split > VALIDATION)
    all_four = np.stack([*kinds, degrees], axis=1)
    # With few nodes a part METIS may leave parts empty; then one constraint, then no METIS.
    for weights in (all_four, np.ones((graph.num_nodes, 1))):
        part = metis.partition(
            indptr, indices, weights, settings.parts, objective=settings.objective, seed=settings.seed
        )
        if len(np.unique(part)) == settings.parts:
            return part
    return _in_ranges(graph, settings)


def pairs(graph: Graph) -> tuple[Array, Array]:
    """Smaller and larger end of each pair of neighbours, once, whatever the directions and duplicates; no loops."""
    n = graph.num_nodes
    keys = np.empty(graph.num_edges, dtype=np.int64)
    start = 0
    for source, target in graph.edge_chunks():
        chunk = keys[start : start + len(source)]
        np.multiply(np.minimum(source, target), n, out=chunk, dtype=np.int64)
        chunk += np.maximum(source, target)
        chunk[source == target] = 0  # a loop gets the key 0, which no pair of two nodes has
        start += len(source)
    keys.sort()
    fresh = keys != 0
    fresh[1:] &= keys[1:] != keys[:-1]
    keys = keys[fresh]
    return (keys // n).astype(np.int32), (keys % n).astype(np.int32)


def both_ways(low: Array, high: Array, num_nodes: int) -> tuple[Array, Array]:
    """Row starts and columns of the symmetric graph of these pairs, in METIS's integers."""
    ends = np.concatenate((low, high))
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(ends, minlength=num_nodes), out=indptr[1:])
    order = np.argsort(ends, kind="stable")
    del ends
    return indptr, np.concatenate((high, low))[order].astype(np.int64)


def _sparsified(low: Array, high: Array, degrees: Array, seed: int) -> tuple[Array, Array]:
    """About KEPT_EDGES a node: METIS takes some 90 bytes an edge, and finds nearly the same parts (decision 7)."""
    chance = np.random.default_rng(seed).random(len(low), dtype=np.float32)
    chance *= np.minimum(degrees[low], degrees[high])
    kept = chance < KEPT_EDGES
    return low[kept], high[kept]


def _at_random(graph: Graph, settings: Settings) -> Array:
    shuffled = np.random.default_rng(settings.seed).permutation(graph.num_nodes)
    return (shuffled % settings.parts).astype(np.int32)


def _in_ranges(graph: Graph, settings: Settings) -> Array:
    return (np.arange(graph.num_nodes, dtype=np.int64) * settings.parts // max(1, graph.num_nodes)).astype(np.int32)


MOST_PARTS = 1024
# Nodes a part below which there is nothing for METIS to find.
LEAST_NODES = 8
# Pairs from which on METIS sees a sample: of a node with fewer neighbours than this all, of others about so many.
SPARSE_FROM = 2_000_000
KEPT_EDGES = 6
METHODS: dict[str, Callable[[Graph, Settings], Array]] = {
    "metis": _by_metis,
    "random": _at_random,
    "range": _in_ranges,
}
