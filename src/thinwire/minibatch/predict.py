"""What an epoch of minibatch training will send, before any run: VIP says which rows are wanted. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thinwire.minibatch.pipeline import HEADER
from thinwire.minibatch.policies import Question
from thinwire.minibatch.rows import RowFormat
from thinwire.minibatch.topology import Array

ID_BYTES = 4


@dataclass(frozen=True)
class Traffic:
    """Of one epoch, over all ranks."""

    rows: float  # expected to be fetched from other ranks
    feature_bytes: float  # their bytes, and those of asking for them


def rows_of(question: Question, cached: Array) -> float:
    """Rows that this rank is expected to fetch in an epoch."""
    chance = question.vip.copy()
    low, high = question.topology.starts[question.schedule.rank : question.schedule.rank + 2]
    chance[low:high] = 0.0
    chance[cached] = 0.0
    return float(chance.sum()) * question.schedule.steps


def traffic(rows: Sequence[float], steps: int, row_format: RowFormat) -> Traffic:
    """From every rank's rows."""
    n = len(rows)
    total = float(np.sum(rows))
    headers = steps * n * (n - 1) * HEADER * ID_BYTES
    return Traffic(total, total * (row_format.nbytes(1) + ID_BYTES) + headers)
