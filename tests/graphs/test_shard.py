"""Shards: glued together they are the graph again; a halo is what is read from elsewhere, and what others send."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs.made import edges_of, graphs
from thinwire.graphs import Graph, Shard, glue, split


@st.composite
def partitioned(draw: st.DrawFn) -> tuple[Graph, list[Shard]]:
    graph = draw(graphs())
    parts = draw(st.integers(1, 5))
    part = np.array(draw(st.lists(st.integers(0, parts - 1), min_size=graph.num_nodes, max_size=graph.num_nodes)))
    return graph, list(split(graph, part.astype(np.int32), parts))


@settings(max_examples=300, deadline=None)
@given(partitioned())
def test_glued_shards_are_the_graph(case: tuple[Graph, list[Shard]]) -> None:
    graph, shards = case
    glued = glue(shards)
    assert edges_of(glued) == edges_of(graph)
    for name in ("x", "y", "split"):
        np.testing.assert_array_equal(getattr(glued, name), getattr(graph, name))
    assert glued.x.dtype == graph.x.dtype


@settings(max_examples=300, deadline=None)
@given(partitioned())
def test_a_halo_is_the_set_of_remote_in_neighbours_and_is_sent_in_its_order(case: tuple[Graph, list[Shard]]) -> None:
    graph, shards = case
    original = torch.cat([shard.original_ids for shard in shards])
    owner = {int(node): shard.part for shard in shards for node in shard.original_ids}
    for shard in shards:
        read = {int(s) for s, t in graph.edge_index.T if owner[int(t)] == shard.part and owner[int(s)] != shard.part}
        assert {int(node) for node in original[shard.halo_ids]} == read
        assert len(shard.halo_ids) == len(read)
        assert sum(shard.halo_from) == shard.num_halo
        for other, rows in zip(shards, shard.halo_ids.split(shard.halo_from), strict=True):
            sent = other.send_rows.split(other.send_to)[shard.part]
            torch.testing.assert_close(sent + other.start, rows)
        central = {int(node) for node in shard.original_ids[: shard.num_central]}
        reads = {int(t) for s, t in graph.edge_index.T if owner[int(s)] != shard.part}
        assert central == {int(node) for node in shard.original_ids} - reads


@settings(max_examples=100, deadline=None)
@given(partitioned())
def test_degrees_are_the_whole_graphs(case: tuple[Graph, list[Shard]]) -> None:
    graph, shards = case
    original = torch.cat([shard.original_ids for shard in shards])
    source, target = graph.edge_index
    weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight.astype(np.float64)
    for shard in shards:
        seen = torch.cat((shard.original_ids, original[shard.halo_ids])).tolist()
        for place, node in enumerate(seen):
            assert shard.in_degree[place] == (target == node).sum()
            assert shard.out_degree[place] == (source == node).sum()
            into = weight[target == node].sum()
            loops = weight[(target == node) & (source == node)]
            looped = into - loops.sum() + (loops[-1] if len(loops) else 1.0)
            assert float(shard.in_weight[place]) == pytest.approx(into, abs=1e-5)
            assert float(shard.looped_weight[place]) == pytest.approx(looped, abs=1e-5)


def test_one_part_is_the_whole_graph() -> None:
    graph = Graph(
        np.array([[0, 1], [1, 2]]), np.zeros((3, 2), np.float32), np.zeros(3, np.int64), np.zeros(3, np.uint8)
    )
    (shard,) = split(graph, np.zeros(3, dtype=np.int32), 1)
    assert (shard.num_owned, shard.num_central, shard.num_halo) == (3, 3, 0)
    assert shard.halo_from == shard.send_to == (0,)
