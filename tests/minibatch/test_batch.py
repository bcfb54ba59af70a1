"""Sums over a batch's layers: native equals its twin, gradients are right, expectations are the whole graph's."""

import contextlib

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from tests.minibatch.made import random_topology, topology_of
from thinwire.codecs import Uniform
from thinwire.codecs.kernels import twins_only
from thinwire.minibatch import Salient
from thinwire.minibatch.batch import Batch, Layer, Sampled
from thinwire.minibatch.kernels import new_sampler
from thinwire.minibatch.layers import forward
from thinwire.minibatch.rows import RowFormat, take
from thinwire.minibatch.topology import Array, Topology
from thinwire.training.job import Job
from thinwire.training.models import build

NONE = np.zeros(0, dtype=np.int64)


def layers_of(topology: Topology, seeds: Array, fanouts: tuple[int, ...], seed: int = 0) -> tuple[Sampled, list[Layer]]:
    sampler = new_sampler(topology.indptr, topology.indices, topology.starts, 0, NONE, fanouts)
    sampler.add(seeds, np.array([len(seeds)]), np.array([seed], dtype=np.uint64))
    sampled = Sampled.of(sampler.next())
    return sampled, [Layer(sampled, topology, number) for number in range(len(fanouts))]


@pytest.mark.parametrize("kind", ["mean", "total", "normalised"])
def test_sums_and_their_gradients_equal_the_twins(kind: str) -> None:
    topology = random_topology(0, 200, 2500)
    sampled, layers = layers_of(topology, np.arange(20), (5, 4))
    for width in (1, 7, 64):
        x = torch.randn(len(sampled.nodes), width, requires_grad=True)
        for layer in layers:
            pull = torch.randn(layer.num_targets, width)
            results: list[tuple[Tensor, Tensor]] = []
            for slowly in (False, True):
                x.grad = None
                if slowly:
                    with twins_only():
                        out = getattr(layer, kind)(x)
                        (out * pull).sum().backward()
                else:
                    out = getattr(layer, kind)(x)
                    (out * pull).sum().backward()
                assert x.grad is not None
                results.append((out.detach(), x.grad))
            for fast, slow in zip(*results, strict=True):
                assert torch.equal(fast, slow)
            dense = dense_of(layer, kind)
            torch.testing.assert_close(results[0][0], dense @ x.detach()[: layer.num_sources], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(results[0][1][: layer.num_sources], dense.T @ pull, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["sage", "gcn", "gin", "gat"])
def test_our_sums_are_pygs_own_layers_where_all_neighbours_are_drawn(name: str) -> None:
    topology = random_topology(5, 60, 400)
    _, sampled = layers_of(topology, np.arange(60), (-1, -1))
    torch.manual_seed(0)
    model = build(Job(Salient(), "", model=name, layers=2, hidden=8), num_features=6, num_classes=3)
    x = torch.randn(60, 6)
    whole = model(x, sampled[0].edge_index)
    torch.testing.assert_close(forward(model, x, tuple(sampled)), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fanouts", [(-1,), (-1, -1), (2,)])
def test_gradients_of_the_first_layer_where_the_last_hop_finds_nobody_new(fanouts: tuple[int, ...]) -> None:
    topology = random_topology(3, 40, 300)
    sampled, layers = layers_of(topology, np.arange(40), fanouts)
    assert len(sampled.nodes) == 40
    x = torch.randn(40, 3, requires_grad=True)
    pull = torch.randn(layers[0].num_targets, 3)
    (layers[0].mean(x) * pull).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, dense_of(layers[0], "mean").T @ pull, rtol=1e-5, atol=1e-5)


def dense_of(layer: Layer, kind: str) -> Tensor:
    """By asking for every source's part."""
    return getattr(layer, kind)(torch.eye(layer.num_sources))


@pytest.mark.parametrize("weighted", [False, True])
def test_sampled_sums_are_expected_to_be_the_whole_graphs(weighted: bool) -> None:
    """GCN's and plain sums, with loops and double edges."""
    randomness = np.random.default_rng(5)
    edges = randomness.integers(0, 30, (260, 2))
    weights = randomness.uniform(0.5, 2.0, 260) if weighted else None
    topology = topology_of(edges, 30, weights=weights)
    x = torch.randn(30, 3)
    matrix = np.zeros((30, 30))
    np.add.at(matrix, (edges[:, 1], edges[:, 0]), 1.0 if weights is None else weights)
    plain = np.zeros((30, 30))
    np.add.at(plain, (edges[:, 1], edges[:, 0]), 1.0)
    np.fill_diagonal(matrix, topology.loop_weight)
    degree = matrix.sum(axis=1)
    expected = {"total": plain, "normalised": matrix / np.sqrt(degree[:, None] * degree[None])}
    sums = {"total": torch.zeros(30, 3), "normalised": torch.zeros(30, 3)}
    draws = 1000
    for seed in range(draws):
        sampled, (layer,) = layers_of(topology, np.arange(30), (4,), seed)
        for kind in sums:
            sums[kind] += getattr(layer, kind)(x[sampled.nodes]) / draws
    for kind, summed in sums.items():
        wanted = torch.from_numpy(expected[kind]).float() @ x
        assert (summed - wanted).abs().max() < 0.2 * wanted.abs().max(), kind


def test_layers_are_prefixes_and_edges_are_as_pyg_has_them() -> None:
    topology = topology_of([(1, 0), (2, 1), (3, 2), (0, 0)], 4, weights=np.array([1.0, 2.0, 3.0, 4.0]))
    sampled, (outer, inner) = layers_of(topology, np.array([0]), (-1, -1))
    assert sampled.nodes.tolist() == [0, 1, 2]
    assert (inner.num_targets, inner.num_sources, outer.num_targets, outer.num_sources) == (1, 2, 2, 3)
    assert outer.edge_index.tolist() == [[0, 1, 2], [0, 0, 1]]
    assert inner.edge_index.tolist() == [[0, 1], [0, 0]]
    assert outer.edge_weight is not None
    assert outer.edge_weight.tolist() == [4.0, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", ["auto", "float32", "float16", "uniform:8", "uniform:4", "uniform:2", "uniform:1"])
def test_rows_travel_to_their_places(dtype: torch.dtype, rows: str) -> None:
    """Native and twins alike, bit for bit; as they are, or as the codec has them."""
    table = torch.randn(50, 37).to(dtype)
    wanted = torch.tensor([3, 3, 49, 0], dtype=torch.int32)
    places = torch.tensor([1, 0, 4, 2], dtype=torch.int32)
    layout = RowFormat.of(rows, table)
    results = []
    for slowly in (False, True):
        out = torch.zeros(5, 37)
        with twins_only() if slowly else contextlib.nullcontext():
            sent = layout.pack(table, wanted, seed=7)
            assert len(sent) == layout.nbytes(4)
            layout.unpack(sent, places, out)
            again = torch.zeros(5, 37)
            take(table, wanted, places, again)
        results.append((sent, out, again))
    for fast, slow in zip(*results, strict=True):
        assert torch.equal(fast, slow)
    chosen = table[wanted.long()].float()
    if layout.bits:
        codec = Uniform(layout.bits)
        chosen = codec.decode(codec.encode(chosen, seed=7), chosen.shape, seed=7)
    elif rows == "float16":
        chosen = chosen.half().float()
    assert torch.equal(results[0][1][places.long()], chosen)
    assert torch.equal(results[0][2][places.long()], table[wanted.long()].float())


def test_rows_that_are_not_there_are_refused() -> None:
    table, one = torch.zeros(5, 4), torch.zeros(1, dtype=torch.int32)
    for rows, places in ((one + 5, one), (one, one + 2), (one - 1, one)):
        with pytest.raises(ValueError, match="is not in"):
            take(table, rows, places, torch.zeros(2, 4))
    with pytest.raises(ValueError, match="infinite"):
        RowFormat.of("uniform:2", table).pack(table / 0, one, 0)
    with pytest.raises(ValueError, match="give float32"):
        RowFormat.of("auto", table.double())


@pytest.mark.parametrize("fanouts", [(5, 4), (3, 2, 2)])
def test_pyg_trims_a_batch_to_what_each_layer_needs(fanouts: tuple[int, ...]) -> None:
    """`num_sampled_nodes` and `num_sampled_edges` are what its trim_to_layer asks for: seeds get the same rows."""
    topology = random_topology(1, 300, 2500)
    sampled, layers = layers_of(topology, np.arange(30), fanouts)
    x = torch.randn(len(sampled.nodes), 6)
    hops = tuple(np.diff(sampled.num_nodes, prepend=0).tolist())
    batch = Batch(x, torch.zeros(30), sampled.nodes, 30, tuple(layers), hops, 30, 0, 0)
    assert sum(batch.num_sampled_nodes) == len(batch.n_id)
    assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
    torch.manual_seed(0)
    convs = [SAGEConv(6, 6) for _ in fanouts]
    whole, trimmed, edges = x, x, batch.edge_index
    for number, conv in enumerate(convs):
        whole = conv(whole, batch.edge_index)
        trimmed, edges, _ = trim_to_layer(
            number, list(batch.num_sampled_nodes), list(batch.num_sampled_edges), trimmed, edges
        )
        trimmed = conv(trimmed, edges)
    assert len(trimmed) < len(whole)
    torch.testing.assert_close(trimmed[:30], whole[:30])
