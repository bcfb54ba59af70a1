"""Measurements of all ranks, a column each, made into one row that is the same on every rank."""

from collections.abc import Sequence

import torch

from thinwire.links import Door

CHANNEL = "profile"


def medians(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    """Column by column the median of this rank's rows, and of that the mean over ranks."""
    return _mean_over_ranks(door, torch.tensor(rows, dtype=torch.float64).median(dim=0).values)


def means(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    """Column by column the mean of this rank's rows, and of that the mean over ranks."""
    return _mean_over_ranks(door, torch.tensor(rows, dtype=torch.float64).mean(dim=0))


def _mean_over_ranks(door: Door, row: torch.Tensor) -> list[float]:
    return list(door.gather(row, channel=CHANNEL).mean(dim=0).tolist())
