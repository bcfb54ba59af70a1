"""Predicts the bytes that an epoch of minibatch training sends: VIP gives the rows that are fetched. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thinwire.minibatch.pipeline import HEADER
from thinwire.minibatch.policies import Question
from thinwire.minibatch.rows import RowFormat
from thinwire.minibatch.topology import Array

ID_BYTES = 4
COUNT_BYTES = 8


@dataclass(frozen=True)
class Traffic:
    """The predicted traffic of one epoch, over all ranks."""

    rows: float  # rows fetched from other ranks
    feature_bytes: float  # bytes of these rows and of the ids that ask for them


def rows_of(question: Question, cached: Array, policy: str = "vip") -> float:
    """The predicted rows that this rank fetches in an epoch.

    For the oracle policy its own counts are used: VIP would predict too many of the rows that are left to fetch.
    """
    steps = question.schedule.steps
    wanted = question.to_come / question.epochs if policy == "oracle" else question.vip * steps
    low, high = question.topology.starts[question.schedule.rank : question.schedule.rank + 2]
    wanted[low:high] = 0.0
    wanted[cached] = 0.0
    return float(wanted.sum())


def fill_bytes(cached_rows: float, row_bytes: int, world_size: int) -> int:
    """The bytes of filling all ranks' caches once: numbers of ids, the ids, and rows as they are stored."""
    if not cached_rows:
        return 0
    return int(cached_rows * (row_bytes + ID_BYTES)) + world_size * (world_size - 1) * world_size * COUNT_BYTES


def traffic(rows: Sequence[float], steps: int, row_format: RowFormat) -> Traffic:
    """The traffic of an epoch, from the rows that each rank fetches."""
    n = len(rows)
    total = float(np.sum(rows))
    headers = steps * n * (n - 1) * HEADER * ID_BYTES
    return Traffic(total, total * (row_format.nbytes(1) + ID_BYTES) + headers)
