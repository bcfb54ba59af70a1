"""Measures the rows of a wire: the error that each choice of bits, and not sending, would add to each row."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.codecs import variances
from thinwire.fullgraph.methods.adaqp import FIRST_BITS, AdaQP

CHUNK = 512


class Trace:
    """Figures of each row that this rank sends on a wire, in the epochs that the method traces."""

    def __init__(self, method: AdaQP) -> None:
        self._method = method
        # FIRST_BITS is always measured: rows of 0 bits are sent with it in epochs that send all rows.
        self.widths = sorted({*method.bits_choice, FIRST_BITS} - {0})
        self.took_s = 0.0  # seconds spent on tracing
        self.variance: Tensor | None = None  # of each row at each width
        self.early: Tensor | None = None  # rows of an earlier epoch: the only tensor that lasts beyond an epoch
        self.moved: Tensor | None = None  # squared distance of each row from its early value
        self.gradient: Tensor | None = None  # squared length of each row's gradient

    @property
    def counts_by_gradient(self) -> bool:
        """Whether a row is weighted by its gradient, even if a fixed matrix reads it."""
        return self._method.weigh == "gradient"

    def going(self, rows: Tensor, epoch: int) -> None:
        """Measure rows that are about to be sent."""
        start = time.perf_counter()
        if self._method.remembers(epoch):
            self.early = rows.detach().clone()
        if self._method.traces(epoch):
            self.variance = variances(rows, self.widths)
            self.moved = None if self.early is None else _squared_distances(rows.detach(), self.early)
            self.early = None
        self.took_s += time.perf_counter() - start

    def came_back(self, gradients: Tensor, epoch: int) -> None:
        """Measure the gradients that were received for the rows sent."""
        if self._method.traces(epoch):
            start = time.perf_counter()
            self.gradient = gradients.square().sum(dim=1)
            self.took_s += time.perf_counter() - start

    def errors(self, bits: Sequence[int]) -> Tensor:
        """The expected squared error of each row in an epoch, at each of these bits.

        A row that is not sent has two errors: how far it has moved since it was sent, and the variance of that last
        message. Movement is not noise, which is drawn anew for each row and epoch and cancels: weights move all rows at
        once in one direction, and the error stays until rows are sent again. For N independent errors over r epochs,
        the expected square of their sum is the sum of their squares. For dependent ones it is up to N r times as much:
        so movement counts N r times.
        """
        assert self.variance is not None
        columns = [self.variance[:, self.widths.index(width or FIRST_BITS)] for width in bits]
        if 0 in bits:
            assert self.moved is not None
            place = list(bits).index(0)
            columns[place] = columns[place] + self.moved * (len(self.moved) * self._method.all_sent_every)
        return torch.stack(columns, dim=1)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """The squared distance of each pair of rows, in chunks, so that differences stay in the cache."""
    chunks = zip(a.split(CHUNK), b.split(CHUNK), strict=True)
    return torch.cat([(x - y).square_().sum(dim=1) for x, y in chunks]) if len(a) else a.new_zeros(0)
