"""What an epoch of minibatch training will send, before any run: VIP says which rows are wanted. Pure."""

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
    """Of one epoch, over all ranks."""

    rows: float  # expected to be fetched from other ranks
    feature_bytes: float  # their bytes, and those of asking for them


def rows_of(question: Question, cached: Array, policy: str = "vip") -> float:
    """Rows that this rank is expected to fetch in an epoch. What an oracle has seen, VIP would count too high."""
    steps = question.schedule.steps
    wanted = question.to_come / question.epochs if policy == "oracle" else question.vip * steps
    low, high = question.topology.starts[question.schedule.rank : question.schedule.rank + 2]
    wanted[low:high] = 0.0
    wanted[cached] = 0.0
    return float(wanted.sum())


def fill_bytes(cached_rows: float, row_bytes: int, world_size: int) -> int:
    """What filling all ranks' caches sends, once: ids and rows, as they are stored, and how many there will be."""
    if not cached_rows:
        return 0
    return int(cached_rows * (row_bytes + ID_BYTES)) + world_size * (world_size - 1) * world_size * COUNT_BYTES


def traffic(rows: Sequence[float], steps: int, row_format: RowFormat) -> Traffic:
    """From every rank's rows."""
    n = len(rows)
    total = float(np.sum(rows))
    headers = steps * n * (n - 1) * HEADER * ID_BYTES
    return Traffic(total, total * (row_format.nbytes(1) + ID_BYTES) + headers)
