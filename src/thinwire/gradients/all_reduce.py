"""Groups whose values are summed on the way: in float32, in two bytes, or values at places that all ranks share."""

from collections.abc import Callable

import torch
from torch import Tensor

from thinwire.gradients.algorithms import NONE
from thinwire.gradients.coded import NOT_FINITE, Coded
from thinwire.gradients.group import Group
from thinwire.links import Transfer


class Dense(Group):
    """Every value, in float32 or rounded to two bytes."""

    _sum: Transfer[Tensor]

    def use_ratio(self, ratio: float) -> None:
        """All values are sent, whatever the ratio."""

    def post(self, gradient: Tensor, step: int, scale: float = 1.0) -> None:
        self.scale = scale
        self._sum = self._parameters.door.all_reduce(self._share(gradient), channel=self._parameters.channel)

    def wait(self) -> None:
        self._sum.wait()

    def finish(self, out: Tensor) -> bool:
        mean = self._sum.wait()
        if mean is not out:
            out.copy_(mean)
        return _is_finite(out)

    def time_codec(self, gradient: Tensor, total: Tensor, clock: Callable[[], float]) -> list[float]:
        gradient = gradient.clone()  # it is divided in place
        begin = clock()
        share = self._share(gradient)
        encoded = clock()
        if share is not gradient:
            total.copy_(share)
        _is_finite(gradient)
        return [encoded - begin, 0.0, clock() - encoded]

    @property
    def transfer_s(self) -> float:
        return self._sum.seconds

    @property
    def sent_bytes(self) -> float:
        n = self._parameters.door.world_size
        return sum(self.sizes) * (4 if self.algorithm.spec == NONE else 2) * 2 * (n - 1) / n

    def _share(self, gradient: Tensor) -> Tensor:
        """This rank's part of the mean. Computed in place, so that float32 gradients are sent without a copy."""
        if self._memory.tensors():  # a debt; memory is without the loss scale
            gradient.copy_(self._memory.compensate(gradient.float() / self.scale) * self.scale)
        gradient.mul_(1 / self._parameters.door.world_size)
        return gradient if self.algorithm.spec == NONE else gradient.to(getattr(torch, self.algorithm.spec))


class AllReduce(Coded):
    """A codec whose payloads are float32 values at the same places on all ranks (randomk)."""

    _sum: Transfer[Tensor]
    _is_summed = True

    def wait(self) -> None:
        self._sum.wait()

    @property
    def transfer_s(self) -> float:
        return self._sum.seconds

    @property
    def sent_bytes(self) -> float:
        n = self._parameters.door.world_size
        return sum(self._nbytes) * 2 * (n - 1) / n

    def _send(self, payload: Tensor) -> None:
        values = payload[:-1].view(torch.float32)
        if payload[-1] == NOT_FINITE:
            values.fill_(torch.nan)  # a sum that contains NaN is NaN on all ranks
        self._sum = self._parameters.door.all_reduce(values, channel=self._parameters.channel)

    def _receive(self, total: Tensor) -> bool:
        values = self._sum.wait()
        fine = bool(torch.isfinite(values).all())
        if fine:
            self._codecs[0].decode(values.view(torch.uint8), total.shape, seed=self._seed_of(0), out=total)
        return fine


def _is_finite(x: Tensor) -> bool:
    """Whether all values are finite. A finite sum proves it in one quick pass; large values may overflow the sum."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())
