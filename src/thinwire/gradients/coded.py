"""Gradients that travel as a codec's bytes, followed by one byte that says whether all values were finite.

All ranks learn from these bytes, and in the same way, whether the step counts.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.codecs import Codec, Parts, TopK
from thinwire.gradients.group import Group, Parameters
from thinwire.gradients.layout import parts_of
from thinwire.gradients.memory import Memory, SliceDebt

FINE, NOT_FINITE = 0, 1


class Coded(Group):
    """Compensate, encode, send; receive, add up in the order of ranks, average."""

    _is_summed: ClassVar[bool]  # whether payloads are summed on the way

    def __init__(
        self,
        parameters: Parameters,
        memory: Memory,
        slices: Sequence[Sequence[int]],
        slice_debt: SliceDebt | None = None,
    ) -> None:
        """`slices`: for each part that is encoded by itself, the sizes of the tensors' pieces in it."""
        super().__init__(parameters, memory, slice_debt)
        self._slices, self._lengths = slices, [sum(pieces) for pieces in slices]
        self._step, self._ratio = 0, 0.0
        self.use_ratio(parameters.algorithm.ratio)

    @abstractmethod
    def _send(self, payload: Tensor) -> None:
        """Post this rank's payload."""

    @abstractmethod
    def _receive(self, total: Tensor) -> bool:
        """Write the sum over ranks to `total`. False if some rank's values were not finite: it may hold anything."""

    def use_ratio(self, ratio: float) -> None:
        if ratio == self._ratio:
            return
        self._ratio = ratio
        codec = self.algorithm.codec
        assert codec is not None
        codec = TopK(ratio) if isinstance(codec, TopK) else codec
        self._codecs = [Parts(parts_of(pieces, codec)) for pieces in self._slices]
        # One more byte for each part says whether it was finite.
        self._nbytes = [codec.nbytes((size,)) + 1 for codec, size in zip(self._codecs, self._lengths, strict=True)]

    def post(self, gradient: Tensor, step: int, scale: float = 1.0) -> None:
        self._step, self.scale = step, scale
        self._send(self._encode(gradient))

    def finish(self, out: Tensor) -> bool:
        total = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
        fine = self._receive(total)
        if fine:
            total.mul_(self.scale / self._parameters.door.world_size)
        if total is not out:
            out.copy_(total)
            # What is remembered may make the mean too large for float16; then it is on all ranks.
            fine = fine and bool(out.isfinite().all())
        return fine

    def time_codec(self, gradient: Tensor, total: Tensor, clock: Callable[[], float]) -> list[float]:
        n, rank = self._parameters.door.world_size, self._parameters.door.rank
        marks = [clock()]
        payload = self._encode(gradient)
        self._memory.commit()
        marks.append(clock())
        self._add_up(self._codecs[0], [payload] * n, total)
        total.mul_(self.scale / n)
        marks.append(clock())
        self._codecs[0].decode(payload[:-1], total.shape, seed=self._seed_of(rank), out=total)
        total.mul_(self.scale)
        marks.append(clock())
        encode_s, add_s, decode_s = (end - begin for begin, end in pairwise(marks))
        return [encode_s, add_s / n, decode_s]

    def _encode(self, gradient: Tensor) -> Tensor:
        """The payload of this gradient plus what is remembered."""
        gradient = gradient.float() if self.scale == 1.0 else gradient.float() / self.scale
        wanted = self._memory.compensate(gradient)
        payload = torch.empty(sum(self._nbytes), dtype=torch.uint8, device=wanted.device)
        slices = list(zip(self._codecs, wanted.split(self._lengths), payload.split(self._nbytes), strict=True))
        seed = self._seed_of(self._parameters.door.rank)
        try:
            for codec, values, data in slices:
                codec.encode(values, seed=seed, out=data[:-1])
                data[-1] = FINE
        except ValueError:  # a value is not finite, or beyond what the codec holds
            for _, _, data in slices:
                data.fill_(0)[-1] = NOT_FINITE
            return payload
        self._memory.sent(
            lambda kept: [
                codec.add(data[:-1], part, seed=seed)
                for (codec, _, data), part in zip(slices, kept.split(self._lengths), strict=True)
            ]
        )
        return payload

    def _add_up(self, codec: Codec, payloads: Sequence[Tensor], total: Tensor) -> bool:
        """Add the payloads up in the order of ranks, so that replicas stay equal bit for bit."""
        if any(int(data[-1]) != FINE for data in payloads):
            return False
        total.zero_()
        for rank, data in enumerate(payloads):
            codec.add(data[:-1], total, seed=self._seed_of(rank))
        return True

    def _seed_of(self, rank: int) -> int:
        """The seed of a rank's payload. Payloads that are summed on the way share one, to have the same places."""
        return self._parameters.seed_of(self._step, 0 if self._is_summed else rank)
