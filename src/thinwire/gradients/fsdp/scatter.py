"""FSDP's reduce-scatter: each rank gets its slice from all ranks, by the codec, and adds it up in rank order."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.codecs import Codec, Parts, seed_from
from thinwire.gradients.coded import FINE, NOT_FINITE
from thinwire.gradients.fsdp.ops import factor_of
from thinwire.gradients.fsdp.passes import Passes
from thinwire.gradients.fsdp.slices import Slices
from thinwire.gradients.fsdp.units import ReduceScatter, Unit
from thinwire.gradients.layout import parts_of
from thinwire.links import Door


class CompressedReduceScatter(ReduceScatter):
    """The reduce-scatter of one unit. Memory is without the loss scale, in the units of what FSDP would add up.

    With a factor of the user's it is divided by that factor, which may change from step to step.
    """

    def __init__(
        self,
        unit: Unit,
        codec: Codec,
        door: Door,
        passes: Passes,
        *,
        remembers: bool,
        scale: Callable[[], float],
        seed: int,
    ) -> None:
        self._unit, self._codec, self._door, self._passes = unit, codec, door, passes
        self._scale, self._seed = scale, seed
        self._channel = f"gradients.fsdp.{unit.name}"
        self.memory = Slices(unit.sizes, unit.num_shards, remembers=remembers, device=unit.device)
        self._parts: dict[tuple[str, ...], Parts] = {}
        self.steps = 0

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        n, rank = self._door.world_size, self._door.rank
        factor, scale = factor_of(op, n), self._scale()
        # The user's factor is applied before gradients are remembered. FSDP divides the sum by its own part of it.
        # The mean's factor never changes, so it is applied to the sum.
        later = self._unit.divisors()[1]
        before, after = (factor / later, later) if self._unit.sums() else (1.0, factor)
        gradient = input_tensor.float()
        if before != scale:
            gradient = gradient * (before / scale)
        names = self._unit.reduced(output_tensor.numel())
        self.memory.use(names)
        codec = self._codec_of(names)
        payloads, fine = self._encoded(codec, self.memory.compensate(gradient).chunk(n))
        received = self._door.all_to_all(payloads, [payloads[rank].nbytes] * n, channel=self._channel).wait()
        fine = all(int(data[-1]) == FINE for data in received)
        if fine:
            total = torch.zeros(output_tensor.shape, dtype=torch.float32, device=output_tensor.device)
            for source, data in enumerate(received):
                codec.add(data[:-1], total, seed=self._seed_of(source))
            output_tensor.copy_(total.mul_(after * scale))
            if output_tensor.dtype == torch.float16:  # what is remembered may make the sum too large for it
                fine = bool(output_tensor.isfinite().all())
        else:
            output_tensor.fill_(torch.nan)
        self.steps += 1
        self._passes.take(self.memory, fine=fine)
        return None

    def owed(self) -> Tensor:
        """What is yet to be delivered to this rank's slices of all trained parameters, summed over all ranks with data.

        In the units of gradients. All ranks call it together.
        """
        n, rank = self._door.world_size, self._door.rank
        memory = torch.cat([self.memory.of(name) for name in self._unit.trained], dim=1)
        rows = [row.contiguous() for row in memory.mul_(self._divided_before())]
        received = self._door.all_to_all(rows, [rows[rank].nbytes] * n, channel=f"{self._channel}.saved").wait()
        total = torch.stack([data.view(torch.float32) for data in received]).sum(dim=0)
        if self._unit.replicate_group is not None:
            dist.all_reduce(total, group=self._unit.replicate_group)
        return total

    def owe(self, name: str, own_slice: Tensor) -> None:
        """Remember what is owed to this rank's slice, for all of the shard group. Each replica keeps an equal part."""
        kept = torch.zeros(self._door.world_size, own_slice.numel(), device=own_slice.device)
        kept[self._door.rank] = own_slice / (self._divided_before() * self._unit.num_replicas)
        self.memory.put(name, kept)

    def clear(self) -> None:
        self.memory.clear()

    def _divided_before(self) -> float:
        """What gradients are divided by before they are remembered, besides the user's factor."""
        return 1.0 if self._unit.sums() else self._unit.divisors()[0]

    def _codec_of(self, names: tuple[str, ...]) -> Parts:
        if names not in self._parts:
            self._parts[names] = Parts(parts_of([self._unit.sizes[name] for name in names], self._codec))
        return self._parts[names]

    def _encoded(self, codec: Codec, slices: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
        seed = self._seed_of(self._door.rank)
        size = codec.nbytes(slices[0].shape) + 1  # one more byte says whether all values were finite
        buffer = torch.empty(len(slices) * size, dtype=torch.uint8, device=slices[0].device)
        payloads = list(buffer.split(size))
        try:
            for values, data in zip(slices, payloads, strict=True):
                codec.encode(values, seed=seed, out=data[:-1])
                data[-1] = FINE
        except ValueError:  # a value is not finite, or beyond what the codec holds
            for data in payloads:
                data.fill_(0)[-1] = NOT_FINITE
            return payloads, False
        self.memory.sent(
            lambda kept: [
                codec.add(data[:-1], part, seed=seed)
                for data, part in zip(payloads, kept.chunk(len(payloads)), strict=True)
            ]
        )
        return payloads, True

    def _seed_of(self, rank: int) -> int:
        return seed_from(self._seed, self.steps, self._unit.number, rank)
