"""What a wire's rows were like lately: for each row what every width would add, and what not sending it would."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.codecs import variances
from thinwire.fullgraph.plan import FIRST_BITS, Plan


class Trace:
    """Sums over the epochs that the plan wants looked at; on the sender's side, a row for each row it sends."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Also that of a row that is refreshed now and then.
        self.widths = sorted({*plan.bits_choice, FIRST_BITS} - {0})
        self.clear()

    def clear(self) -> None:
        self.took_s = 0.0  # to look
        self.epochs = 0
        self.variance: Tensor | None = None  # of each row at each width
        self.early: Tensor | None = None  # rows as they were a while ago
        self.moved: Tensor | None = None  # squared distance of each row from then
        self.gradient: Tensor | None = None  # squared length of what came back for each row

    def going(self, rows: Tensor, epoch: int) -> None:
        """Look at rows that are about to be sent."""
        start = time.perf_counter()
        if self._plan.remembers(epoch):
            self.early = rows.detach().clone()
        if self._plan.compares(epoch) and self.early is not None:
            self.moved = (rows.detach() - self.early).square_().sum(dim=1)
            self.early = None
        if self._plan.traces(epoch):
            found = variances(rows, self.widths)
            self.variance = found if self.variance is None else self.variance + found
            self.epochs += 1
        self.took_s += time.perf_counter() - start

    def came_back(self, gradients: Tensor, epoch: int) -> None:
        if self._plan.traces(epoch):
            start = time.perf_counter()
            squares = gradients.square().sum(dim=1)
            self.gradient = squares if self.gradient is None else self.gradient + squares
            self.took_s += time.perf_counter() - start

    def errors(self, bits: Sequence[int]) -> Tensor:
        """Expected squared error of each row at each of these bits, an epoch.

        A row that is not sent is off by how far it has moved, and by what its last refreshing added.
        """
        assert self.variance is not None
        mean = self.variance / self.epochs
        columns = [mean[:, self.widths.index(width or FIRST_BITS)] for width in bits]
        if 0 in bits:
            assert self.moved is not None
            columns[list(bits).index(0)] = columns[list(bits).index(0)] + self.moved
        return torch.stack(columns, dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        found = {"variance": self.variance, "early": self.early, "moved": self.moved, "gradient": self.gradient}
        return {"epochs": torch.tensor(self.epochs)} | {name: x for name, x in found.items() if x is not None}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.clear()
        self.epochs = int(tensors["epochs"]) if tensors else 0
        self.variance, self.early = tensors.get("variance"), tensors.get("early")
        self.moved, self.gradient = tensors.get("moved"), tensors.get("gradient")
