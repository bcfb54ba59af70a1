"""Graphs for tests, by hypothesis: isolated nodes, loops, duplicates, directions, weights, several labels."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from thinwire.graphs import Graph


@st.composite
def graphs(draw: st.DrawFn, *, most_nodes: int = 12, most_edges: int = 40) -> Graph:
    n = draw(st.integers(1, most_nodes))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=most_edges))
    if draw(st.booleans()):
        edges = [*edges, *[(target, source) for source, target in edges]]
    ids = np.array(edges, dtype=draw(st.sampled_from([np.int32, np.int64]))).reshape(-1, 2).T
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    split = rng.integers(0, 4, n).astype(np.uint8)
    split[rng.integers(n)] = 0
    several = draw(st.booleans())
    optional: dict[str, Any] = {}
    if draw(st.booleans()):
        optional["edge_weight"] = rng.standard_normal(len(edges)).astype(np.float32)
    if draw(st.booleans()):
        optional["edge_attr"] = rng.standard_normal((len(edges), 3)).astype(np.float32)
    return Graph(
        edge_index=ids,
        x=rng.standard_normal((n, 4)).astype(draw(st.sampled_from([np.float16, np.float32]))),
        y=rng.integers(0, 2, (n, 3)).astype(np.uint8) if several else rng.integers(0, 3, n),
        split=split,
        classes=("a", "b", "c"),
        **optional,
    )


def edges_of(graph: Graph) -> list[tuple[Any, ...]]:
    """Edges with what goes along, sorted: equal lists are equal graphs, duplicates counted."""
    weights = np.zeros(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    attrs = np.zeros((graph.num_edges, 0)) if graph.edge_attr is None else graph.edge_attr
    rows = zip(*graph.edge_index.tolist(), weights.tolist(), map(tuple, attrs.tolist()), strict=True)
    return sorted(rows)
