"""Measurements of all ranks, one kind a column, reduced to one row that is the same on all ranks."""

from collections.abc import Sequence

import torch

from thinwire.links import Door

CHANNEL = "profile"


def medians(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    """For each column the median of a rank's rows, averaged over ranks."""
    return _mean_over_ranks(door, torch.tensor(rows, dtype=torch.float64).median(dim=0).values)


def means(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    """For each column the mean of a rank's rows, averaged over ranks."""
    return _mean_over_ranks(door, torch.tensor(rows, dtype=torch.float64).mean(dim=0))


def _mean_over_ranks(door: Door, row: torch.Tensor) -> list[float]:
    return list(door.gather(row, channel=CHANNEL).mean(dim=0).tolist())
