"""Policies of a rank's cache: each gives every remote vertex a worth, 0 for those not worth a place. Pure.

vip         the probability that a batch touches it                                  (SALIENT++)
degree      its out-degree, if a batch can reach it within the fan-outs' hops
halo        1 for neighbours of the rank's own vertices
paths       the number of walks to it from the rank's seeds, of up to as many hops
simulation  how often it is touched in two other epochs
oracle      how often it will be touched in the epochs of the run itself
none        0
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from thinwire.minibatch.inclusion import vip
from thinwire.minibatch.kernels import new_sampler
from thinwire.minibatch.schedule import Schedule
from thinwire.minibatch.topology import Array, Topology

# Epochs that `simulation` samples; no run trains on them.
SIMULATED = (-1, -2)


@dataclass(frozen=True)
class Question:
    """What a policy knows: the graph, and a rank's seeds, fan-outs and epochs."""

    topology: Topology
    schedule: Schedule  # of the rank's seeds
    fanouts: tuple[int, ...]
    epochs: int  # that `oracle` looks at
    threads: int = 1

    @cached_property
    def vip(self) -> Array:
        return vip(self.topology, self.schedule.seeds, batch=self.schedule.mean_batch, fanouts=self.fanouts)

    @cached_property
    def to_come(self) -> Array:
        """How often each vertex is touched in the epochs that `oracle` looks at."""
        return self.touched(range(self.epochs))

    def touched(self, epochs: Sequence[int]) -> Array:
        """The number of batches of these epochs that each vertex is in: float64 [N]."""
        held = (self.topology.starts, self.schedule.rank, np.zeros(0, dtype=np.int64))
        sampler = new_sampler(
            self.topology.indptr, self.topology.indices, *held, self.fanouts, with_edges=False, threads=self.threads
        )
        touches = np.zeros(self.topology.num_nodes)
        for epoch in epochs:
            sampler.add(*self.schedule.work(epoch))
            for _ in range(self.schedule.steps):
                touches[np.unique(sampler.next()["nodes"])] += 1
        return touches


def worth(policy: str, question: Question) -> Array:
    """The worth of each vertex, 0 for the rank's own: float64 [N]."""
    worth_N = RULES[policy](question)
    low, high = question.topology.starts[question.schedule.rank : question.schedule.rank + 2]
    worth_N[low:high] = 0.0
    return worth_N


def choose(worth_N: Array, capacity: int) -> Array:
    """The `capacity` vertices of most worth, in rising order. Of equal worth the lowest ids; none of worth 0."""
    capacity = min(capacity, int(np.count_nonzero(worth_N)))
    if capacity <= 0:
        return np.zeros(0, dtype=np.int64)
    least = np.partition(worth_N, len(worth_N) - capacity)[len(worth_N) - capacity]
    above = np.flatnonzero(worth_N > least)
    ties = np.flatnonzero(worth_N == least)[: capacity - len(above)]
    return np.sort(np.concatenate((above, ties)))


def capacity(alpha: float, num_nodes: int, num_parts: int) -> int:
    """The rows of a cache with this replication factor."""
    return int(alpha * num_nodes / num_parts)


def _degree(question: Question) -> Array:
    degrees = np.bincount(question.topology.indices, minlength=question.topology.num_nodes).astype(np.float64)
    return np.where(question.vip > 0, degrees, 0.0)


def _halo(question: Question) -> Array:
    topology, rank = question.topology, question.schedule.rank
    low, high = topology.indptr[topology.starts[rank]], topology.indptr[topology.starts[rank + 1]]
    worth_N = np.zeros(topology.num_nodes)
    worth_N[topology.indices[low:high]] = 1.0
    return worth_N


def _paths(question: Question) -> Array:
    walks = np.zeros(question.topology.num_nodes)
    walks[question.schedule.seeds] = 1.0
    worth_N = np.zeros_like(walks)
    for _ in question.fanouts:
        walks = question.topology.sum_over_targets(walks)
        worth_N += walks
    return worth_N


RULES: dict[str, Callable[[Question], Array]] = {
    "vip": lambda question: question.vip.copy(),
    "degree": _degree,
    "halo": _halo,
    "paths": _paths,
    "simulation": lambda question: question.touched(SIMULATED),
    "oracle": lambda question: question.to_come.copy(),
    "none": lambda question: np.zeros(question.topology.num_nodes),
}
