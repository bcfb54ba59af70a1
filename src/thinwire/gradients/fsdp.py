"""The same codecs in FSDP2: its reduce-scatter, with each rank's slices encoded.

Limits: groups are the modules that were given to `fully_shard`, one message each and nothing is fused across them; a
message is waited for where FSDP asks for it; one sharded mesh dimension over all ranks; what is remembered is a rank's
own and starts anew with it. Where one rank's gradient is not finite, all slices of that module are NaN.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

# The one place that knows torch's private path.
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from thinwire.codecs import Codec, seed_from
from thinwire.gradients.algorithms import RESIDUAL, algorithm
from thinwire.gradients.group import FINE, NOT_FINITE
from thinwire.gradients.memory import Memory, memory_for
from thinwire.links import Door


def compress(model: nn.Module, codec: str, links: Door, *, feedback: bool = True, seed: int = 0) -> nn.Module:
    """Let every module of a `fully_shard`ed model send its gradients by this codec. Returns the model."""
    found = algorithm(codec, feedback=feedback)
    if found.codec is None or found.memory not in ("", RESIDUAL):
        raise ValueError(
            f"compress: codec {codec!r} does not go with FSDP; give sign, topk:0.01, uniform:8 or their like"
        )
    modules = [each for each in model.modules() if isinstance(each, FSDPModule)]
    if not modules:
        raise ValueError("compress: no module of this model is sharded; call torch's fully_shard on it first")
    for number, module in enumerate(modules):
        module.set_custom_reduce_scatter(CompressedReduceScatter(number, found.codec, found.memory, links, seed))
    return model


class CompressedReduceScatter(ReduceScatter):
    """One module's: a slice to each rank, added up there in the order of ranks."""

    def __init__(self, number: int, codec: Codec, memory: str, door: Door, seed: int) -> None:
        self._number, self._codec, self._door, self._seed = number, codec, door, seed
        self._kind = memory
        self._memory: Memory | None = None
        self._step = 0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        n, rank = self._door.world_size, self._door.rank
        if group.size() != n:
            raise ValueError(f"compress: this model is sharded over {group.size()} of {n} ranks; shard it over all")
        if self._memory is None:
            size = input_tensor.numel()
            self._memory = memory_for(self._kind, [str(self._number)], [size], {}, 0.0, input_tensor.device)
        slices = self._memory.compensate(input_tensor.float()).chunk(n)
        payloads, fine = self._encoded(slices)
        received = self._door.all_to_all(
            payloads, [payloads[rank].nbytes] * n, channel=f"gradients.fsdp.{self._number}"
        ).wait()
        if fine and all(int(data[-1]) == FINE for data in received):
            total = torch.zeros_like(slices[rank])
            for source, data in enumerate(received):
                self._codec.add(data[:-1], total, seed=self._seed_of(source))
            self._memory.commit()
            # The divisor is ours where FSDP asks for a mean; a sum it divides itself.
            output_tensor.copy_(total / n if op == dist.ReduceOp.AVG else total)
        else:
            output_tensor.fill_(torch.nan)
        self._step += 1
        return None

    def _encoded(self, slices: tuple[Tensor, ...]) -> tuple[list[Tensor], bool]:
        assert self._memory is not None
        seed = self._seed_of(self._door.rank)
        payloads = [slices[0].new_zeros(self._codec.nbytes(each.shape) + 1, dtype=torch.uint8) for each in slices]
        try:
            for values, data in zip(slices, payloads, strict=True):
                self._codec.encode(values.contiguous(), seed=seed, out=data[:-1])
        except ValueError:
            for data in payloads:
                data.fill_(0)[-1] = NOT_FINITE
            return payloads, False
        self._memory.sent(
            lambda kept: [
                self._codec.add(data[:-1], part, seed=seed)
                for data, part in zip(payloads, kept.chunk(len(payloads)), strict=True)
            ]
        )
        return payloads, True

    def _seed_of(self, rank: int) -> int:
        return seed_from(self._seed, self._step, self._number, rank)
