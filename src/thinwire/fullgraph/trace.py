"""What a wire's rows are like: for each row what every width would add, and what not sending it would."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.codecs import variances
from thinwire.fullgraph.methods.adaqp import FIRST_BITS, AdaQP

CHUNK = 512


class Trace:
    """On the sender's side, a row for each row it sends, in the epochs that the method wants looked at."""

    def __init__(self, method: AdaQP) -> None:
        self._method = method
        # Also that of a row that is sent only now and then.
        self.widths = sorted({*method.bits_choice, FIRST_BITS} - {0})
        self.took_s = 0.0  # to look
        self.variance: Tensor | None = None  # of each row at each width
        self.early: Tensor | None = None  # rows as they were a while ago: all that outlasts an epoch
        self.moved: Tensor | None = None  # squared distance of each row from then
        self.gradient: Tensor | None = None  # squared length of what came back for each row

    @property
    def counts_by_gradient(self) -> bool:
        """Whether a message counts by what comes back for it, even where a fixed matrix reads it."""
        return self._method.weigh == "gradient"

    def going(self, rows: Tensor, epoch: int) -> None:
        """Look at rows that are about to be sent."""
        start = time.perf_counter()
        if self._method.remembers(epoch):
            self.early = rows.detach().clone()
        if self._method.traces(epoch):
            self.variance = variances(rows, self.widths)
            self.moved = None if self.early is None else _squared_distances(rows.detach(), self.early)
            self.early = None
        self.took_s += time.perf_counter() - start

    def came_back(self, gradients: Tensor, epoch: int) -> None:
        if self._method.traces(epoch):
            start = time.perf_counter()
            self.gradient = gradients.square().sum(dim=1)
            self.took_s += time.perf_counter() - start

    def errors(self, bits: Sequence[int]) -> Tensor:
        """Expected squared error of each row at each of these bits, an epoch.

        A row that is not sent is off by how far it has moved, and by what its last sending added. That is no noise,
        which is drawn anew for each row and epoch and cancels: weights move all rows at once, one way, and so they stay
        until they are sent again. The square of a sum of N errors over r epochs is at most N r times the sum of their
        squares, and for independent ones that sum itself: so lags count N r times.
        """
        assert self.variance is not None
        columns = [self.variance[:, self.widths.index(width or FIRST_BITS)] for width in bits]
        if 0 in bits:
            assert self.moved is not None
            place = list(bits).index(0)
            columns[place] = columns[place] + self.moved * (len(self.moved) * self._method.all_sent_every)
        return torch.stack(columns, dim=1)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Of each row; some rows at a time, so that differences stay in the cache."""
    both = zip(a.split(CHUNK), b.split(CHUNK), strict=True)
    return torch.cat([(x - y).square_().sum(dim=1) for x, y in both]) if len(a) else a.new_zeros(0)
