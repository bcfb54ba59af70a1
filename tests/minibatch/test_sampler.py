"""The sampler: native equals its twin, any thread count, every neighbour equally often, and what a batch promises."""

import time

import numpy as np
import pytest

from tests.minibatch.made import random_topology, topology_of
from thinwire.codecs.kernels import native, twins_only
from thinwire.minibatch import twins
from thinwire.minibatch.kernels import new_sampler
from thinwire.minibatch.topology import Array, Topology

NONE = np.zeros(0, dtype=np.int64)


def sample(
    topology: Topology, seeds: Array, fanouts: tuple[int, ...], seed: int = 0, **more: object
) -> dict[str, Array]:
    """One batch, by whoever is at hand."""
    held: dict[str, object] = {"rank": 0, "cached": NONE} | more
    sampler = new_sampler(topology.indptr, topology.indices, topology.starts, fanouts=fanouts, **held)  # type: ignore[arg-type]
    sampler.add(np.asarray(seeds, dtype=np.int64), np.array([len(seeds)]), np.array([seed], dtype=np.uint64))
    return sampler.next()


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("fanouts", [(3,), (5, 4, 3), (-1, 2), (60, 70), (1, -1, 1)])
def test_native_equals_its_twin(fanouts: tuple[int, ...], wide: bool) -> None:
    assert native() is not None
    topology = random_topology(1, 400, 9000, parts=3)
    if wide:
        topology = Topology(topology.indptr, topology.indices.astype(np.int64), topology.starts)
    cached = np.array([0, 1, 5, 63, 64, 65, 130, 131, 399])
    for seed, seeds in enumerate(([7], [150, 151, 399, 150, 0], [], list(range(0, 400, 3)))):
        options = {"rank": 1, "cached": cached}
        fast = sample(topology, np.array(seeds), fanouts, seed, **options)
        with twins_only():
            slow = sample(topology, np.array(seeds), fanouts, seed, **options)
        assert fast.keys() == slow.keys()
        for name in fast:
            np.testing.assert_array_equal(fast[name], slow[name], err_msg=name)
            assert name in ("num_nodes", "wanted_from") or fast[name].dtype == slow[name].dtype, name


def test_a_batch_is_what_it_promises() -> None:
    topology = random_topology(2, 500, 6000, parts=4)
    cached = np.array([3, 77, 200, 499])
    batch = sample(topology, np.arange(250, 262), (6, 3), 5, rank=2, cached=cached)
    nodes, indptr, columns = batch["nodes"], batch["indptr"], batch["columns"]
    assert nodes[:12].tolist() == list(range(250, 262))
    assert len(set(nodes.tolist())) == len(nodes)
    low, high = batch["num_nodes"][:2]
    assert len(indptr) == high + 1
    assert batch["num_nodes"][2] == len(nodes)
    degrees = np.diff(topology.indptr)[nodes]
    for row in range(high):
        fanout = 6 if row < low else 3
        drawn = batch["edges"][indptr[row] : indptr[row + 1]]
        assert len(drawn) == min(fanout, degrees[row])
        assert len(set(drawn.tolist())) == len(drawn)  # without replacement
        assert topology.indptr[nodes[row]] <= drawn.min(initial=topology.indptr[nodes[row]])
        assert drawn.max(initial=0) < topology.indptr[nodes[row] + 1]
    np.testing.assert_array_equal(topology.indices[batch["edges"]], nodes[columns])
    assert columns[: indptr[low]].max() < high  # what seeds read is found by the first hop
    every = np.concatenate((batch["own_at"], batch["cached_at"], batch["wanted_at"]))
    assert sorted(every.tolist()) == list(range(len(nodes)))
    np.testing.assert_array_equal(batch["own_rows"] + 250, nodes[batch["own_at"]])
    np.testing.assert_array_equal(cached[batch["cached_rows"]], nodes[batch["cached_at"]])
    owners = np.repeat(np.arange(4), batch["wanted_from"])
    np.testing.assert_array_equal(topology.starts[owners] + batch["wanted_rows"], nodes[batch["wanted_at"]])
    rows = np.repeat(np.arange(high), np.diff(indptr))
    back = np.repeat(np.arange(high), np.diff(batch["column_ptr"]))  # of the layer whose targets are the seeds
    assert len(batch["rows"]) == indptr[low]
    np.testing.assert_array_equal(batch["rows"], rows[batch["row_edges"]])
    np.testing.assert_array_equal(back, columns[batch["row_edges"]])


@pytest.mark.parametrize(("degree", "count"), [(20, 5), (20, 19), (7, 1), (200, 60)])
def test_each_neighbour_is_drawn_equally_often(degree: int, count: int) -> None:
    """Drawing from j instead of j + 1 values would make the last `count` rarer: 0.21 and 0.263 for 5 of 20."""
    topology = topology_of([(1 + source, 0) for source in range(degree)], degree + 1)
    draws = 4000
    hits, pairs = np.zeros(degree), 0
    sampler = new_sampler(topology.indptr, topology.indices, topology.starts, 0, NONE, (count,), ahead=100)
    sampler.add(np.zeros(draws, dtype=np.int64), np.arange(1, draws + 1), np.arange(draws, dtype=np.uint64))
    for _ in range(draws):
        drawn = sampler.next()["nodes"][1:] - 1
        assert len(set(drawn.tolist())) == count
        hits[drawn] += 1
        pairs += {degree - 1, degree - 2} <= set(drawn.tolist())
    share = count / degree
    assert np.abs(hits / draws - share).max() < 4.5 * np.sqrt(share * (1 - share) / draws)
    both = share * (count - 1) / (degree - 1)
    assert abs(pairs / draws - both) < 4.5 * np.sqrt(max(both * (1 - both), 1e-4) / draws)


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_come_in_order_whoever_samples_them(threads: int) -> None:
    topology = random_topology(3, 300, 3000)
    seeds, ends = np.arange(290, dtype=np.int64), np.array([*range(10, 291, 10)])
    keys = np.arange(29, dtype=np.uint64)
    sampler = new_sampler(topology.indptr, topology.indices, topology.starts, 0, NONE, (4, 4), threads=threads, ahead=3)
    for _ in range(2):  # more may be added at any time
        sampler.add(seeds, ends, keys)
    for number in range(58):
        batch = number % 29
        alone = twins.sample(
            topology.indptr, topology.indices, topology.starts, 0, NONE, seeds[10 * batch : ends[batch]], (4, 4), batch
        )
        np.testing.assert_array_equal(sampler.next()["nodes"], alone["nodes"])
    with pytest.raises(IndexError, match="no batch is left"):
        sampler.next()


@pytest.mark.slow
@pytest.mark.timed
def test_threads_that_are_far_enough_ahead_sleep() -> None:
    """With no bound they would sample on, some seconds' worth; with a spinning one they would be as busy."""
    assert native() is not None
    topology = random_topology(7, 100_000, 2_000_000)
    count, size = 300, 2_000
    seeds = np.random.default_rng(0).integers(100_000, size=count * size)
    sampler = new_sampler(topology.indptr, topology.indices, topology.starts, 0, NONE, (10, 10), threads=2, ahead=3)
    sampler.add(seeds, size * np.arange(1, count + 1), np.arange(count, dtype=np.uint64))
    begin = time.process_time()
    sampler.next()
    while time.process_time() - begin > 0.02:  # until those ahead are done
        begin = time.process_time()
        time.sleep(0.2)
    begin = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - begin < 0.05
    begin = time.process_time()
    for _ in range(60):
        sampler.next()
    assert time.process_time() - begin > 0.1  # each is work: all 300 are more than threads could have done above


def test_edges_of_the_possible() -> None:
    """A fan-out above the degree, vertices without neighbours, seeds given twice, no seeds, no edges at all."""
    topology = topology_of([(1, 0), (2, 0), (0, 2)], 5)
    batch = sample(topology, np.array([0, 3, 0]), (9, 9))
    assert batch["nodes"].tolist() == [0, 3, 0, 1, 2]
    assert batch["indptr"].tolist() == [0, 2, 2, 4, 4, 5]  # each of the two draws; what vertex 2 draws is the first
    assert batch["columns"].tolist() == [3, 4, 3, 4, 0]
    assert sample(topology, np.array([4]), (3, 3))["num_nodes"].tolist() == [1, 1, 1]
    assert sample(topology, NONE, (3, 3))["num_nodes"].tolist() == [0, 0, 0]
    empty = topology_of([], 3)
    assert sample(empty, np.array([2, 1]), (2, 2))["nodes"].tolist() == [2, 1]


def test_wrong_input_is_refused() -> None:
    topology = topology_of([(1, 0)], 2)
    with pytest.raises(ValueError, match="seed 2; vertices are 0 to 1"):
        sample(topology, np.array([2]), (1,))
    for wrong in ({"fanouts": (0,)}, {"cached": np.array([1, 0])}, {"rank": 1}):
        arguments = {"rank": 0, "cached": NONE, "fanouts": (1,)} | wrong
        with pytest.raises(ValueError, match=r"fan-outs|cached|rank"):
            new_sampler(topology.indptr, topology.indices, topology.starts, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no vertex"):
        new_sampler(topology.indptr, np.array([7], dtype=np.int32), topology.starts, 0, NONE, (1,))
