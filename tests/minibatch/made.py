"""Small graphs for tests."""

import numpy as np

from thinwire.graphs import TRAIN
from thinwire.minibatch.topology import Array, Topology


def topology_of(
    edges: list[tuple[int, int]] | Array, num_nodes: int, *, parts: int = 1, weights: Array | None = None
) -> Topology:
    """(source, target): the target draws from the source. All vertices are training ones, parts are ranges."""
    ends = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    degrees = np.bincount(ends[:, 1], minlength=num_nodes)
    return Topology(
        np.concatenate(([0], np.cumsum(degrees))),
        ends[order, 0].astype(np.int32),
        np.arange(parts + 1) * num_nodes // parts,
        np.zeros(num_nodes, dtype=np.int64),
        np.full(num_nodes, TRAIN, dtype=np.uint8),
        None if weights is None else weights[order].astype(np.float32),
    )


def random_topology(seed: int, num_nodes: int, num_edges: int, *, parts: int = 1) -> Topology:
    """Heavy-tailed, with loops and double edges."""
    randomness = np.random.default_rng(seed)
    ends = (num_nodes * randomness.random((num_edges, 2)) ** 2).astype(np.int64)
    return topology_of(ends, num_nodes, parts=parts)
