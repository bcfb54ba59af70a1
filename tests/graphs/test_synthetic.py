"""The synthetic graph: heavy-tailed, in communities, and its neighbours are needed."""

import numpy as np
import pytest
import torch
from torch import nn

from thinwire.graphs import TEST, TRAIN, Graph, GraphError, check, load
from thinwire.graphs.synthetic import Settings, generate, parse


def test_sizes_tails_and_communities() -> None:
    graph = load("synthetic:nodes=5000,degree=12,cross=0.1,communities=20,seed=3")
    assert graph.num_edges == 5000 * 12
    source, target = graph.edge_index
    assert not (source == target).any()
    keys = set(zip(source.tolist(), target.tolist(), strict=True))
    assert len(keys) == graph.num_edges
    assert keys == {(t, s) for s, t in keys}
    degrees = np.bincount(target, minlength=5000)
    assert degrees.max() > 15 * np.median(degrees)
    assert np.isfinite(graph.x).all()
    assert graph.x.dtype == np.float16
    assert sorted(np.bincount(graph.split) / 5000) == pytest.approx([0.2, 0.2, 0.6], abs=0.01)
    # Ends of an edge are of one class in 0.9 of cases, less label noise, plus chance.
    assert 0.75 < (graph.y[source] == graph.y[target]).mean() < 0.95


@pytest.mark.parametrize(("degree", "cross"), [(15, 0.2), (60, 0.1), (10, 0.0), (10, 1.0)])
def test_the_share_between_communities_is_what_was_asked_for(degree: int, cross: float) -> None:
    graph = load(f"synthetic:nodes=3000,degree={degree},cross={cross},communities=12,classes=12,label_noise=0,noise=0")
    assert graph.num_edges == 3000 * degree
    source, target = graph.edge_index
    assert (graph.y[source] != graph.y[target]).mean() == pytest.approx(cross, abs=0.001)


def test_training_nodes_of_a_few_communities() -> None:
    name = "synthetic:nodes=3000,communities=12,classes=12,label_noise=0,train=0.1"
    spread, clustered = load(name), load(f"{name},train_in=0.25")
    assert len(set(spread.y[spread.split == TRAIN])) == 12
    assert len(set(clustered.y[clustered.split == TRAIN])) == 3
    assert (clustered.split == TRAIN).sum() == 300
    assert (spread.edge_index == clustered.edge_index).all()
    # Where those have too few, the others give the rest.
    assert (load(f"{name.replace('0.1', '0.5')},train_in=0.25").split == TRAIN).sum() == 1500


def test_seeds_and_variants() -> None:
    first, again, other = (generate(Settings(nodes=300, seed=seed)) for seed in (1, 1, 2))
    assert (first.edge_index == again.edge_index).all()
    assert (first.x == again.x).all()
    assert first.edge_index.shape != other.edge_index.shape or (first.edge_index != other.edge_index).any()
    directed = check(load("synthetic:nodes=300,directed"))
    source, target = directed.edge_index
    assert set(zip(source.tolist(), target.tolist(), strict=True)) != set(
        zip(target.tolist(), source.tolist(), strict=True)
    )
    several = check(load("synthetic:nodes=300,multilabel,classes=7"))
    assert several.y.shape == (300, 7)
    assert 1 < several.y.sum(axis=1).mean() < 4
    for nodes in (1, 2, 3):
        check(generate(Settings(nodes=nodes)))


def test_mistakes_in_a_recipe() -> None:
    for wrong, message in {
        "synthetic:node=5": "there is no 'node'; give some of nodes, degree",
        "synthetic:nodes=many": "'nodes=many'; give for example nodes=20000",
        "synthetic:nodes": "give for example nodes=20000",
        "synthetic:nodes=0": "nodes is 0; the default is 20000",
        "synthetic:cross=2": "cross is 2.0",
        "synthetic:train_in=0": "train_in is 0.0",
        "synthetic:nodes=2.9": "give for example nodes=20000",
        "synthetic:degree=inf": "give for example degree=15.0",
        "synthetic:communities=3": "communities is 3",
        "synthetic:directed=perhaps": "give for example directed=False",
    }.items():
        with pytest.raises(GraphError, match=message):
            parse(wrong)


def test_more_edges_than_there_can_be_is_an_error() -> None:
    with pytest.raises(GraphError, match="give a smaller degree"):
        load("synthetic:nodes=1000,degree=300,communities=100,cross=0")


def mean_of_neighbours(graph: Graph, x: torch.Tensor) -> torch.Tensor:
    source, target = (torch.from_numpy(ends.astype(np.int64)) for ends in graph.edge_index)
    total = torch.zeros_like(x).index_add_(0, target, x[source])
    return total / torch.bincount(target, minlength=len(x)).clamp(min=1)[:, None]


def score(graph: Graph, *, messages: bool) -> float:
    """Test accuracy of two layers, SAGE's with messages and without."""
    torch.manual_seed(0)
    x, y = torch.from_numpy(graph.x.astype(np.float32)), torch.from_numpy(graph.y.astype(np.int64))
    x = (x - x.mean(0)) / x.std(0)
    first, second = nn.Linear(2 * x.shape[1], 64), nn.Linear(128, graph.num_classes)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01, weight_decay=1e-3)
    split = torch.from_numpy(graph.split)

    def beside(h: torch.Tensor) -> torch.Tensor:
        return torch.cat((h, mean_of_neighbours(graph, h) if messages else torch.zeros_like(h)), dim=1)

    seen = beside(x)
    for _ in range(60):
        optimizer.zero_grad()
        logits = second(beside(torch.relu(first(seen))))
        nn.functional.cross_entropy(logits[split == TRAIN], y[split == TRAIN]).backward()
        optimizer.step()
    return float((logits.argmax(1) == y)[split == TEST].float().mean())


def test_neighbours_matter() -> None:
    graph = load("synthetic:nodes=4000")
    assert score(graph, messages=True) >= score(graph, messages=False) + 0.10
