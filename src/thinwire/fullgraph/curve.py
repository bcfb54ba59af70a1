"""Variance over bytes: the lower hull of each row's choices, and one convex curve for all rows of a pair. Pure.

Along a row's lower hull, each further byte reduces variance by less than the one before it. So take the steps of all
rows, sorted by gain per byte: the first steps are the best choice at their number of bytes, and between two such
numbers at most one step short of the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]

# Steps past the budget that are searched for smaller ones that still fit.
FILL = 64


@dataclass(frozen=True)
class Curve:
    """Variance of all rows together over their bytes, from the cheapest choice of each row to the best one."""

    row: Ints  # of each step, by falling gain per byte
    choice: Ints  # of that row after the step
    step_bytes: Array
    step_gain: Array
    num_rows: int
    least_bytes: float  # every row at the cheapest choice
    least_variance: float
    marks: Array  # [2, 2]: bytes and variance with every row at one choice, and at another; others are measured by them

    @staticmethod
    def of(bytes_C: Sequence[float] | Array, variance_KC: Array, marks: tuple[int, int] = (0, -1)) -> "Curve":
        """Choices are given by rising bytes; a row's variances need not fall along them."""
        sizes = np.asarray(bytes_C, dtype=np.float64)
        if len(sizes) == 0 or np.any(np.diff(sizes) <= 0):
            raise ValueError(f"choices of {list(sizes)} bytes; give at least one, in rising order")
        if variance_KC.ndim != 2 or variance_KC.shape[1] != len(sizes):
            raise ValueError(f"variances of shape {variance_KC.shape}; give a column for each of {len(sizes)} choices")
        if not np.isfinite(variance_KC).all():
            raise ValueError("a variance is not finite: what is to be sent is not, or spans more than float32 holds")
        rows, choices, grown, gained, rate = _hull_steps(sizes, np.ascontiguousarray(variance_KC.T, dtype=np.float64))
        order = _falling(rate)
        num_rows = len(variance_KC)
        return Curve(
            rows[order],
            choices[order],
            grown[order],
            gained[order],
            num_rows,
            float(num_rows * sizes[0]),
            float(variance_KC[:, 0].sum()),
            np.array([[num_rows * sizes[mark], variance_KC[:, mark].sum()] for mark in marks]),
        )

    @cached_property
    def bytes(self) -> Array:
        """The bytes after each step, from the cheapest choice on."""
        return self.least_bytes + np.concatenate(([0.0], np.cumsum(self.step_bytes)))

    @cached_property
    def variance(self) -> Array:
        """The variance after each step."""
        return self.least_variance - np.concatenate(([0.0], np.cumsum(self.step_gain)))

    def within(self, budget: float) -> "Taken":
        """The best steps that fit into the budget; after the first that does not fit, later ones that do."""
        first = int(np.searchsorted(self.bytes, budget * (1 + 1e-12), side="right")) - 1
        first = max(first, 0)
        left = budget - self.bytes[first]
        missed: set[int] = set()
        later = []
        gain = 0.0
        for step in range(first, min(first + FILL, len(self.row))):
            row = int(self.row[step])
            if row in missed or self.step_bytes[step] > left:
                missed.add(row)  # a row's later steps need this one
                continue
            later.append(step)
            left -= self.step_bytes[step]
            gain += self.step_gain[step]
        size = float(self.bytes[first] + self.step_bytes[later].sum())
        return Taken(self, first, tuple(later), size, float(self.variance[first]) - gain)


@dataclass(frozen=True)
class Taken:
    """Some steps of a curve: the first `first` ones, and those in `more`."""

    curve: Curve
    first: int
    more: tuple[int, ...]
    bytes: float
    variance: float

    def choices(self) -> Ints:
        """The choice of each row."""
        chosen = np.zeros(self.curve.num_rows, dtype=np.int64)
        steps = np.concatenate((np.arange(self.first), np.asarray(self.more, dtype=np.int64)))
        chosen[self.curve.row[steps]] = self.curve.choice[steps]  # the last of a row's steps counts
        return chosen


def _falling(rate: Array) -> Ints:
    """The order of positive numbers, largest first, at float32's precision. Stable.

    Two passes of numpy's radix sort for 16 bits take a third of the time of a comparison sort.
    """
    bits = ~rate.astype(np.float32).view(np.uint32)
    order = np.argsort(bits.astype(np.uint16), kind="stable")
    return order[np.argsort((bits >> 16).astype(np.uint16)[order], kind="stable")]


Steps = tuple[Ints, Ints, Array, Array, Array]  # row, choice after the step, bytes, gain, gain per byte


def _hull_steps(sizes: Array, variance_CK: Array) -> Steps:
    """The steps from choice to choice along each row's lower hull."""
    gains = variance_CK[:-1] - variance_CK[1:]
    rates = gains / np.diff(sizes)[:, None]
    # For most rows each further choice gains less per byte than the one before it: then all choices are on the hull.
    convex = np.all(rates[1:] < rates[:-1], axis=0) & np.all(rates[-1:] > 0, axis=0)
    steps: list[Steps] = []
    rows: Ints = np.flatnonzero(convex).astype(np.int32)
    for choice, (gain, rate) in enumerate(zip(gains[:, convex], rates[:, convex], strict=True), start=1):
        grown = np.full(len(rows), sizes[choice] - sizes[choice - 1])
        steps.append((rows, np.full(len(rows), choice, dtype=np.int8), grown, gain, rate))
    steps += _jumps(sizes, variance_CK, np.flatnonzero(~convex).astype(np.int32))
    if not steps:
        none = np.zeros(0)
        return none.astype(np.int64), none.astype(np.int64), none, none, none
    rows, choices, grown, gain, rate = (np.concatenate(column) for column in zip(*steps, strict=True))
    return rows, choices, grown, gain, rate


def _jumps(sizes: Array, variance_CK: Array, rows: Ints) -> list[Steps]:
    """The same for rows whose hull leaves choices out: each step goes to the choice with the most gain per byte."""
    now = np.zeros(len(rows), dtype=np.int8)
    left = variance_CK[0, rows]
    before = np.full(len(rows), np.inf)
    steps: list[Steps] = []
    while len(rows):
        best = np.zeros(len(rows))
        target = np.zeros(len(rows), dtype=np.int8)
        for choice in range(1, len(sizes)):
            grown = sizes[choice] - sizes[now]
            rate = np.where(grown > 0, left - variance_CK[choice, rows], 0.0) / np.where(grown > 0, grown, 1.0)
            better = (rate > 0) & (rate >= best)  # of equal rates the farthest choice: they are one step
            best[better] = rate[better]
            target[better] = choice
        moves = target > 0
        rows, now, left, target = rows[moves], now[moves], left[moves], target[moves]
        before = np.minimum(best[moves], np.nextafter(before[moves], 0))  # rounding must not swap a row's steps
        after = variance_CK[target, rows]
        steps.append((rows, target, sizes[target] - sizes[now], left - after, before))
        now, left = target, after
    return steps
