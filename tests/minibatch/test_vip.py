"""VIP: equal to enumeration where it is exact, near the sampled frequency elsewhere, quick, and refused where wrong."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from tests.minibatch.made import topology_of
from thinwire import graphs
from thinwire.minibatch import Topology, vip
from thinwire.minibatch.topology import Array


def sampled(
    topology: Topology, seeds: Array, fanouts: tuple[int, ...], randomness: np.random.Generator, *, again: bool
) -> set[int]:
    """What one batch touches beyond its seeds: frontier to frontier, neighbours without replacement."""
    frontier, touched = set(seeds.tolist()), set()
    known = set(frontier)
    for fanout in fanouts:
        reached: set[int] = set()
        for v in frontier:
            neighbours = topology.indices[topology.indptr[v] : topology.indptr[v + 1]]
            count = len(neighbours) if fanout == -1 else min(fanout, len(neighbours))
            reached |= set(randomness.choice(neighbours, count, replace=False).tolist())
        touched |= reached
        frontier = reached if again else reached - known
        known |= reached
    return touched


def test_a_directed_tree_is_exact() -> None:
    """0 draws 2 of its 3 children, each of which draws 1 of its 2; both seeds, one a batch."""
    edges = [(1, 0), (2, 0), (3, 0), *((4 + 2 * (c - 1) + i, c) for c in (1, 2, 3) for i in (0, 1)), (11, 10)]
    topology = topology_of(edges, 12)
    chances = vip(topology, np.array([0, 10]), batch=1, fanouts=(2, 1))
    hits = np.zeros(12)
    outcomes = 0
    for seed in (0, 10):
        for children in itertools.combinations((1, 2, 3), 2):
            for drawn in itertools.product((0, 1), repeat=2):
                outcomes += 1
                if seed == 10:
                    hits[11] += 1
                else:
                    for child, which in zip(children, drawn, strict=True):
                        hits[child] += 1
                        hits[4 + 2 * (child - 1) + which] += 1
    np.testing.assert_allclose(chances, hits / outcomes, atol=1e-12)
    assert vip(topology, np.array([0, 10]), batch=1, fanouts=(2, 1), with_seeds=True)[0] == pytest.approx(0.5)


def test_all_neighbours_large_batches_and_no_seeds() -> None:
    topology = topology_of([(1, 0), (2, 0), (3, 1), (3, 3)], 5)
    assert vip(topology, np.array([0]), batch=100, fanouts=(-1, -1)).tolist() == [0, 1, 1, 1, 0]
    assert vip(topology, np.array([0]), batch=1, fanouts=(5,)).tolist() == [0, 1, 1, 0, 0]
    assert not vip(topology, np.array([], dtype=np.int64), batch=4, fanouts=(2, 2)).any()
    for wrong, message in (
        ({"batch": 0, "fanouts": (1,)}, "more than 0"),
        ({"batch": 1, "fanouts": (0,)}, "-1 for all"),
    ):
        with pytest.raises(ValueError, match=message):
            vip(topology, np.array([0]), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_near_the_sampled_frequency(directed: bool, again: bool, tmp_path: Path) -> None:
    data = f"synthetic:nodes=1500,degree=6,classes=4,features=4,directed={str(directed).lower()}"
    graphs.prepare(data, graphs.Settings(2), tmp_path / "shards")
    shards = [graphs.read_shard(tmp_path / "shards", part) for part in range(2)]
    topology = Topology.of(shards)
    assert topology.num_nodes == 1500
    seeds = (shards[0].split == graphs.TRAIN).nonzero().squeeze(1).numpy()
    predicted = vip(topology, seeds, batch=10, fanouts=(4, 2), expands_again=again)
    randomness = np.random.default_rng(0)
    batches = 1500
    hits = np.zeros(1500)
    for _ in range(batches):
        touched = sampled(topology, randomness.choice(seeds, 10, replace=False), (4, 2), randomness, again=again)
        hits[list(touched)] += 1
    frequency = hits / batches
    assert not frequency[predicted == 0].any()
    # Vertices are taken as independent, which they are not quite; noise is a standard error of each.
    error = np.abs(frequency - predicted) - 4 * np.sqrt(predicted * (1 - predicted) / batches)
    assert error.max() < 0.03
    assert frequency.sum() == pytest.approx(predicted.sum(), rel=0.05)


@pytest.mark.slow
@pytest.mark.timed
def test_a_million_vertices_four_parts_in_seconds() -> None:
    randomness = np.random.default_rng(0)
    num_nodes, num_edges = 1_000_000, 20_000_000
    degrees = np.bincount(randomness.integers(0, num_nodes, num_edges), minlength=num_nodes)
    sources = randomness.integers(0, num_nodes, num_edges, dtype=np.int32)
    starts = np.arange(0, num_nodes + 1, num_nodes // 4)
    topology = Topology(np.concatenate(([0], np.cumsum(degrees))), sources, starts)
    begin = time.process_time()
    for part in range(4):
        seeds = np.arange(starts[part], starts[part] + 12_500)
        vip(topology, seeds, batch=256, fanouts=(15, 10, 5))
    assert time.process_time() - begin < 10
