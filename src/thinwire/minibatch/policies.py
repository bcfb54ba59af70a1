"""Which remote vertices are worth a place in a rank's cache: a number each, 0 for those that are not. Pure.

vip         the chance that a batch touches it                                       (SALIENT++)
degree      out-degree, of those that can be reached in as many hops as there are fan-outs
halo        1 for those next to own vertices
paths       walks to it from own seeds of up to as many hops
simulation  how often it is touched in two other epochs
oracle      how often it will be touched in the very epochs of the run
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

# Epochs that `simulation` samples: none that a run will see.
SIMULATED = (-1, -2)


@dataclass(frozen=True)
class Question:
    """For whom a cache is."""

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
        """How often each vertex will be touched, in the epochs that `oracle` looks at."""
        return self.touched(range(self.epochs))

    def touched(self, epochs: Sequence[int]) -> Array:
        """In how many batches of these epochs each vertex is: float64 [N]."""
        held = (self.topology.starts, self.schedule.rank, np.zeros(0, dtype=np.int64))
        sampler = new_sampler(
            self.topology.indptr, self.topology.indices, *held, self.fanouts, with_edges=False, threads=self.threads
        )
        found = np.zeros(self.topology.num_nodes)
        for epoch in epochs:
            sampler.add(*self.schedule.work(epoch))
            for _ in range(self.schedule.steps):
                found[np.unique(sampler.next()["nodes"])] += 1
        return found


def worth(policy: str, question: Question) -> Array:
    """Of every vertex but the rank's own: float64 [N]."""
    found = RULES[policy](question)
    low, high = question.topology.starts[question.schedule.rank : question.schedule.rank + 2]
    found[low:high] = 0.0
    return found


def choose(worth_N: Array, capacity: int) -> Array:
    """The best so many vertices, none without worth, of equal ones those first in number; in rising order."""
    capacity = min(capacity, int(np.count_nonzero(worth_N)))
    if capacity <= 0:
        return np.zeros(0, dtype=np.int64)
    least = np.partition(worth_N, len(worth_N) - capacity)[len(worth_N) - capacity]
    above = np.flatnonzero(worth_N > least)
    ties = np.flatnonzero(worth_N == least)[: capacity - len(above)]
    return np.sort(np.concatenate((above, ties)))


def capacity(alpha: float, num_nodes: int, num_parts: int) -> int:
    """Rows that a replication factor stands for."""
    return int(alpha * num_nodes / num_parts)


def _degree(question: Question) -> Array:
    degrees = np.bincount(question.topology.indices, minlength=question.topology.num_nodes).astype(np.float64)
    return np.where(question.vip > 0, degrees, 0.0)


def _halo(question: Question) -> Array:
    topology, rank = question.topology, question.schedule.rank
    low, high = topology.indptr[topology.starts[rank]], topology.indptr[topology.starts[rank + 1]]
    found = np.zeros(topology.num_nodes)
    found[topology.indices[low:high]] = 1.0
    return found


def _paths(question: Question) -> Array:
    walks = np.zeros(question.topology.num_nodes)
    walks[question.schedule.seeds] = 1.0
    found = np.zeros_like(walks)
    for _ in question.fanouts:
        walks = question.topology.sum_over_targets(walks)
        found += walks
    return found


RULES: dict[str, Callable[[Question], Array]] = {
    "vip": lambda question: question.vip.copy(),
    "degree": _degree,
    "halo": _halo,
    "paths": _paths,
    "simulation": lambda question: question.touched(SIMULATED),
    "oracle": lambda question: question.to_come.copy(),
    "none": lambda question: np.zeros(question.topology.num_nodes),
}
