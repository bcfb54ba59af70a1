"""Groups that are exchanged in two steps: each rank adds up its own slice, encodes the sum again and sends it to all.

A rank sends 2 (n - 1) / n c bytes. The owner of a slice remembers what the second encoding loses (`SliceDebt`).
"""

import torch
from torch import Tensor

from thinwire.gradients.coded import FINE, NOT_FINITE, Coded
from thinwire.links import Transfer


class TwoStep(Coded):
    """Two encodings: of this rank's gradient, slice by slice, and of the sum of the slice that it owns."""

    _slices_in: Transfer[list[Tensor]]  # of this rank's slice, from all ranks
    _sums: Transfer[list[Tensor]]  # of every slice, from its owner
    _is_summed = False

    def wait(self) -> None:
        self._slices_in.wait()
        self._sums.wait()

    @property
    def transfer_s(self) -> float:
        return self._slices_in.seconds + self._sums.seconds

    @property
    def sent_bytes(self) -> float:
        n = self._parameters.door.world_size
        return sum(self._nbytes) * 2 * (n - 1) / n

    def _send(self, payload: Tensor) -> None:
        door = self._parameters.door
        sizes = [self._nbytes[door.rank]] * door.world_size
        self._slices_in = door.all_to_all(payload.split(self._nbytes), sizes, channel=self._parameters.channel)
        self._slices_in.then(self._pass_on)

    def _pass_on(self, payloads: list[Tensor]) -> None:
        """Add up this rank's slice and send the sum to all. Runs on the thread that has received the payloads."""
        door, debt = self._parameters.door, self._slice_debt
        assert debt is not None
        codec, data = self._codecs[door.rank], torch.empty_like(payloads[0])
        total = torch.empty(self._lengths[door.rank], dtype=torch.float32, device=data.device)
        data.fill_(0)[-1] = NOT_FINITE
        debt.forget()
        if self._add_up(codec, payloads, total):
            debt.compensate(total)
            seed = self._seed_of(door.world_size)
            try:
                codec.encode(total, seed=seed, out=data[:-1])
                data[-1] = FINE
            except ValueError:  # the sum is beyond what the codec holds
                pass
            else:
                if self.algorithm.memory:
                    debt.remember(codec.add(data[:-1], total.neg_(), seed=seed).neg_())
        channel = f"{self._parameters.channel}.second"
        self._sums = door.all_to_all([data] * door.world_size, self._nbytes, channel=channel)

    def _receive(self, total: Tensor) -> bool:
        self._slices_in.wait()
        slices = zip(self._codecs, self._sums.wait(), total.split(self._lengths), strict=True)
        seed = self._seed_of(self._parameters.door.world_size)
        fine = True
        for codec, data, part in slices:
            fine = fine and int(data[-1]) == FINE
            if fine:
                codec.decode(data[:-1], part.shape, seed=seed, out=part)
        return fine
