"""Partitions: every node has a part, METIS balances all four kinds, and bad wishes are refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs.made import graphs
from thinwire.graphs import Graph, GraphError, Settings, assign, load, metis, partition, read_assignment, split
from thinwire.graphs.partition import METHODS, both_ways, pairs
from thinwire.graphs.report import PartRow, report


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load("synthetic")


@pytest.mark.parametrize("objective", ["cut", "volume"])
def test_metis_balances_training_validation_other_nodes_and_degrees(graph: Graph, objective: str) -> None:
    parts = 4
    part = assign(graph, Settings(parts, objective=objective))
    degrees = np.bincount(np.concatenate(pairs(graph)), minlength=graph.num_nodes)
    kinds = [graph.split == 0, graph.split == 1, graph.split == 2]
    for weight in (*kinds, degrees):
        shares = np.bincount(part, weights=weight, minlength=parts) / weight.sum() * parts
        assert shares.max() <= 1.001 + parts / weight.sum() + 0.002
    facts = report([PartRow.of(shard) for shard in split(graph, part, parts)], layers=3, hidden=256)
    assert facts["cut_share"] < 0.3  # at random 0.75; drawn without regard to communities: 0.2
    assert facts["halo_rows"] < 30_000  # at random 51,000
    assert facts["bytes_per_epoch"]["float32"] == 4 * facts["halo_rows"] * 1024
    assert facts["bytes_per_epoch"]["1 bit"] == 4 * facts["halo_rows"] * 36


def test_a_sample_of_edges_finds_nearly_the_same_cut(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = assign(graph, Settings(4, objective="cut", thorough=True))
    monkeypatch.setattr(partition, "SPARSE_FROM", 0)
    sampled = assign(graph, Settings(4, objective="cut"))
    assert (sampled != whole).any()
    source, target = graph.edge_index
    cuts = [(part[source] != part[target]).mean() for part in (whole, sampled)]
    assert cuts[1] <= 1.35 * cuts[0]  # so small a graph loses more than a large one, and is never sampled
    assert (assign(graph, Settings(4, objective="cut", thorough=True)) == whole).all()


@pytest.mark.parametrize(("nodes", "parts"), [(61, 32), (100, 11), (300, 30)])
def test_no_part_is_empty_where_there_are_nodes_enough(nodes: int, parts: int) -> None:
    part = assign(load(f"synthetic:nodes={nodes},degree=4"), Settings(parts))
    assert np.bincount(part, minlength=parts).min() >= 1


def test_the_same_seed_gives_the_same_parts(graph: Graph) -> None:
    for method in METHODS:
        first, second = (assign(graph, Settings(3, method, seed=5)) for _ in range(2))
        assert (first == second).all()
    assert (assign(graph, Settings(3, "metis", seed=5)) != assign(graph, Settings(3, "metis", seed=6))).any()


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(1, 16), st.sampled_from([*METHODS]), st.sampled_from(["cut", "volume"]))
def test_any_graph_in_any_number_of_parts(graph: Graph, parts: int, method: str, objective: str) -> None:
    part = assign(graph, Settings(parts, method, objective))
    assert part.shape == (graph.num_nodes,)
    assert part.dtype == np.int32
    assert ((part >= 0) & (part < parts)).all()
    if graph.num_nodes >= parts:
        assert len(np.unique(part)) == parts
    if method != "metis":
        assert np.ptp(np.bincount(part, minlength=parts)) <= 1


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_a_symmetric_graph_has_each_pair_once_both_ways(graph: Graph) -> None:
    indptr, indices = both_ways(*pairs(graph), graph.num_nodes)
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(indptr))
    rows_and_columns = sorted(zip(rows.tolist(), indices.tolist(), strict=True))
    wanted = {(s, t) for s, t in graph.edge_index.T.tolist() if s != t}
    assert rows_and_columns == sorted(wanted | {(t, s) for s, t in wanted})


def test_without_the_c_interface_one_sum_is_balanced_and_said(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    with pytest.warns(UserWarning, match="hides METIS's C interface"):
        part = assign(graph, Settings(4))
    assert np.bincount(part).max() <= 1.2 * graph.num_nodes / 4


def test_metis_that_gives_up_is_an_error(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "OK", 99)
    with pytest.raises(metis.MetisError, match="METIS gave up with status 1; try another --seed"):
        assign(graph, Settings(2))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Settings(0), "parts is 0; give 1 or more"),
        (Settings(10**6), "give at most"),
        (Settings(2, "magic"), "give one of metis, random, range"),
        (Settings(2, objective="beauty"), "give one of cut, volume"),
    ],
)
def test_bad_wishes(graph: Graph, wish: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign(graph, wish)


def test_an_assignment_of_ones_own(tmp_path: Path) -> None:
    graph = load("synthetic:nodes=5,degree=2")
    np.save(tmp_path / "mine.npy", np.array([0, 1, 0, 2, 2]))
    (tmp_path / "mine.txt").write_text("0\n1\n0\n2\n2\n")
    for name in ("mine.npy", "mine.txt"):
        assert read_assignment(tmp_path / name, graph, 3).tolist() == [0, 1, 0, 2, 2]
    with pytest.raises(GraphError, match="node 3 is in part 2; parts are 0 to 1"):
        read_assignment(tmp_path / "mine.txt", graph, 2)
    (tmp_path / "short.txt").write_text("0\n1\n")
    with pytest.raises(GraphError, match="give an integer for each of 5 nodes"):
        read_assignment(tmp_path / "short.txt", graph, 2)
    (tmp_path / "words.txt").write_text("here\nthere\n")
    with pytest.raises(GraphError, match="give a whole number a line"):
        read_assignment(tmp_path / "words.txt", graph, 2)
