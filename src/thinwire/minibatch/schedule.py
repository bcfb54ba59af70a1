"""Who trains on what, when: a function of seed, epoch and rank, so that any batch can be had again. Pure.

All ranks take the same number of steps, so that nobody waits for one that is done: as many as the fullest part needs.
Each cuts its own seeds, in a new order every epoch, into that many batches as equal as can be; a batch may be empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thinwire.codecs import seed_from

Array = np.ndarray[Any, np.dtype[Any]]
# Apart from other uses of the same seed.
ORDER, PICKS = 11, 12


@dataclass(frozen=True)
class Schedule:
    """Of one rank's seeds."""

    seeds: Array  # int64: this rank's own
    counts: tuple[int, ...]  # seeds of every rank
    rank: int
    batch: int
    seed: int
    shuffled: bool = True

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return max(1, -(-max(self.counts) // self.batch))

    @property
    def mean_batch(self) -> float:
        """What a seed's chance to be in a batch is counted by."""
        return len(self.seeds) / self.steps

    def total(self, step: int) -> int:
        """Seeds of all ranks in this step."""
        return sum(_cut(count, step + 1, self.steps) - _cut(count, step, self.steps) for count in self.counts)

    def work(self, epoch: int, first: int = 0) -> tuple[Array, Array, Array]:
        """Of an epoch, from this step on: the seeds, batch after batch, where each batch ends, and its key.

        A key is what a batch's neighbours are drawn by: uint64.
        """
        cuts = np.array([_cut(len(self.seeds), step, self.steps) for step in range(first, self.steps + 1)])
        keys = [seed_from(self.seed, PICKS, epoch, step, self.rank) for step in range(first, self.steps)]
        return self.order(epoch)[cuts[0] :], cuts[1:] - cuts[0], np.array(keys, dtype=np.uint64)

    def order(self, epoch: int) -> Array:
        """An epoch's seeds."""
        if not self.shuffled:
            return self.seeds
        return np.random.default_rng(seed_from(self.seed, ORDER, epoch, self.rank)).permutation(self.seeds)


def _cut(count: int, step: int, steps: int) -> int:
    return count * step // steps


def schedule_of(members: Sequence[Array], rank: int, batch: int, seed: int, *, shuffled: bool = True) -> Schedule:
    """Of every rank's seeds, this rank's."""
    return Schedule(members[rank], tuple(len(each) for each in members), rank, batch, seed, shuffled)
