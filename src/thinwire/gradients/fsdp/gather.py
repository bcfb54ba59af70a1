"""FSDP's all-gather: sends the difference between a shard and what the other ranks hold of it, in a few bits.

All ranks hold the same copy of the unit, and a sender encodes the difference between its shard and that copy. So what a
codec loses is part of the next difference, and errors do not add up. The weights that the optimizer updates stay exact.
The first gather sends all weights as they are. Weights that have not changed are not sent again, for instance in the
gather of backward.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.codecs import Codec, Parts, seed_from
from thinwire.gradients.coded import FINE, NOT_FINITE
from thinwire.gradients.fsdp.units import AllGather, Unit
from thinwire.gradients.layout import parts_of
from thinwire.links import Door

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Bytes after the payload: 8 for how often this unit was gathered, 1 for whether all values were finite.
TRAILER = 9


class DifferencesGathered(AllGather):
    """The all-gather of one unit. It keeps the whole unit in float32, and this rank's shard two more times."""

    def __init__(self, unit: Unit, codec: Codec, door: Door, *, seed: int) -> None:
        self._unit, self._codec, self._door, self._seed = (
            unit,
            Parts(parts_of(list(unit.sizes.values()), codec)),
            door,
            seed,
        )
        self._channel = f"parameters.fsdp.{unit.name}"
        self._held: Tensor | None = None  # [n, S], the copy that all ranks hold
        self._own = torch.empty(0)  # this rank's row of it
        self._sent = torch.empty(0)  # the shard that was gathered last
        self._versions: tuple[int, ...] = ()
        self._start: Tensor | None = None  # this rank's row of the copy in a loaded state
        self._after: torch.Event | None = None
        self.gathers = 0

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """On a CPU FSDP reads directly from the held copy. It first writes its own shard there; `_give` undoes that."""
        readable = device.type == "cpu" and dtype == torch.float32 and not self._unit.gathers_from_fewer()
        if self._held is not None and readable:
            return self._held.view(-1)
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if tuple(dist.get_process_group_ranks(group)) != self._door.ranks:
            # With `reshard_after_forward=2` or the like, fewer ranks share the unit after forward. They hold shards of
            # the gathered values, so a plain gather suffices.
            return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        if input_tensor.dtype not in FLOATS:
            raise ValueError(
                f"compress: {self._unit.name!r} is gathered as {input_tensor.dtype}, since its parameters have several "
                "dtypes or one of their own; give parameters=None"
            )
        stream = None if input_tensor.device.type == "cpu" else torch.accelerator.current_stream(input_tensor.device)
        if stream is not None and self._after is not None:
            stream.wait_event(self._after)  # FSDP may gather on another stream than the last time
        self._gather(output_tensor, input_tensor)
        self._after = None if stream is None else stream.record_event()
        return None

    def reset(self) -> None:
        """Let the next gather send the whole shard as it is. All ranks call it together."""
        self._held, self._start = None, None

    def as_held(self) -> Tensor:
        """This rank's shard as the other ranks hold it, or will hold it after the first gather."""
        if self._held is not None:
            return self._own
        if self._start is not None:
            return self._start
        return torch.cat([self._unit.shard(name).float() for name in self._unit.names]).to(self._unit.device)

    def start_with(self, held: Tensor) -> None:
        """Let the next gather start from this copy of the shard."""
        self._held, self._start = None, held

    def _gather(self, output: Tensor, shard: Tensor) -> None:
        versions = self._unit.versions()
        self.gathers += 1
        if self._held is None:
            start = shard.float() if self._start is None else self._start
            self._send_whole(start)
            changed = self._start is not None
            self._start = None
        else:
            # Values are compared too, since writing to `p.data` changes no version.
            changed = versions != self._versions or not torch.equal(shard, self._sent)
        if changed and not self._send_difference(shard):
            self._send_whole(shard.float())
        self._versions = versions
        self._sent = shard.clone()
        self._give(output)

    def _send_whole(self, shard: Tensor) -> None:
        n = self._door.world_size
        parts = self._door.all_gather(shard.contiguous(), [shard.nbytes] * n, channel=self._channel).wait()
        with torch.inference_mode(False):  # the first gather may happen in inference mode
            self._held = torch.stack([data.view(torch.float32) for data in parts])
            self._own = shard.clone()

    def _send_difference(self, shard: Tensor) -> bool:
        """Send the difference; False on all ranks if some rank's was not finite."""
        assert self._held is not None
        n, rank = self._door.world_size, self._door.rank
        difference = shard.float() - self._own
        payload = torch.empty(
            self._codec.nbytes(difference.shape) + TRAILER, dtype=torch.uint8, device=difference.device
        )
        payload[-TRAILER:-1] = torch.tensor([self.gathers]).view(torch.uint8).to(payload.device)
        try:
            self._codec.encode(difference, seed=self._seed_of(rank), out=payload[:-TRAILER])
            payload[-1] = FINE
        except ValueError:
            payload[:-TRAILER] = 0
            payload[-1] = NOT_FINITE
        received = self._door.all_gather(payload, [payload.nbytes] * n, channel=self._channel).wait()
        trailers = torch.stack([data[-TRAILER:] for data in received]).cpu()
        self._agree(trailers[:, :-1].contiguous().view(torch.int64).view(-1).tolist())
        if bool((trailers[:, -1] != FINE).any()):
            return False
        for source, data in enumerate(received):
            row = self._own if source == rank else self._held[source]
            self._codec.add(data[:-TRAILER], row, seed=self._seed_of(source))
        return True

    def _agree(self, gathers: list[int]) -> None:
        """Raise if another rank has gathered this unit more or fewer times."""
        for peer, peer_gathers in enumerate(gathers):
            if peer_gathers != self.gathers:
                raise RuntimeError(
                    f"rank {self._door.ranks[self._door.rank]} changed parameters of {self._unit.name!r} before gather "
                    f"{self.gathers}, rank {self._door.ranks[peer]} before gather {peer_gathers}: change them on all "
                    "ranks in the same steps, in place on the parameter itself, not on its .data"
                )

    def _give(self, output: Tensor) -> None:
        assert self._held is not None
        self._held[self._door.rank] = self._own
        if output.data_ptr() != self._held.data_ptr():
            output.view(self._held.shape).copy_(self._held)

    def _seed_of(self, rank: int) -> int:
        return seed_from(self._seed, self.gathers, self._unit.number, rank)
