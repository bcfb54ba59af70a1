"""The seeds of each batch: a function of seed, epoch and rank, so that any batch can be reproduced. Pure.

All ranks take the same number of steps, as many as the rank with the most seeds needs, so no rank waits for one that
has finished. Each cuts its seeds, in a new order every epoch, into that many batches of nearly equal size; a batch may
be empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thinwire.codecs import seed_from

Array = np.ndarray[Any, np.dtype[Any]]
# Make these random numbers differ from others of the same seed.
ORDER, PICKS = 11, 12


@dataclass(frozen=True)
class Schedule:
    """The batches of one rank."""

    seeds: Array  # int64: this rank's own
    counts: tuple[int, ...]  # seeds of every rank
    rank: int
    batch: int
    seed: int
    shuffled: bool = True

    @property
    def steps(self) -> int:
        """The steps of an epoch, the same on all ranks."""
        return max(1, -(-max(self.counts) // self.batch))

    @property
    def mean_batch(self) -> float:
        """The mean number of seeds in a batch of this rank."""
        return len(self.seeds) / self.steps

    def total(self, step: int) -> int:
        """The number of seeds of all ranks in this step."""
        return sum(_cut(count, step + 1, self.steps) - _cut(count, step, self.steps) for count in self.counts)

    def work(self, epoch: int, first: int = 0) -> tuple[Array, Array, Array]:
        """From step `first` of an epoch on: the seeds in order, the end of each batch in them, and each batch's key.

        A batch's neighbours are drawn from its key: uint64.
        """
        cuts = np.array([_cut(len(self.seeds), step, self.steps) for step in range(first, self.steps + 1)])
        keys = [seed_from(self.seed, PICKS, epoch, step, self.rank) for step in range(first, self.steps)]
        return self.order(epoch)[cuts[0] :], cuts[1:] - cuts[0], np.array(keys, dtype=np.uint64)

    def order(self, epoch: int) -> Array:
        """The rank's seeds in the order of this epoch."""
        if not self.shuffled:
            return self.seeds
        return np.random.default_rng(seed_from(self.seed, ORDER, epoch, self.rank)).permutation(self.seeds)


def _cut(count: int, step: int, steps: int) -> int:
    return count * step // steps


def schedule_of(members: Sequence[Array], rank: int, batch: int, seed: int, *, shuffled: bool = True) -> Schedule:
    """This rank's schedule, from the seeds of all ranks."""
    return Schedule(members[rank], tuple(len(seeds) for seeds in members), rank, batch, seed, shuffled)
