"""FSDP's all-gather: the difference of a shard to what the others hold of it, in a few bits.

The loop is closed: every rank keeps the unit as all hold it, and a sender takes its difference to that. So what a codec
loses is in the next difference, and errors do not add up; the weights that an optimizer steps stay exact. The first
gather sends all as it is. Weights that have not changed, in backward's gather for one, are not sent again.
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
# After the payload: how often this unit was gathered, 8 bytes, and whether all was finite.
TRAILER = 9


class DifferencesGathered(AllGather):
    """One unit's. It keeps the whole unit in float32, as long as training lasts, and our own shard twice more."""

    def __init__(self, unit: Unit, codec: Codec, door: Door, *, seed: int) -> None:
        self._unit, self._codec, self._door, self._seed = (
            unit,
            Parts(parts_of(list(unit.sizes.values()), codec)),
            door,
            seed,
        )
        self._channel = f"parameters.fsdp.{unit.name}"
        self._held: Tensor | None = None  # [n, S], as all ranks hold it
        self._own = torch.empty(0)  # our row of it
        self._sent = torch.empty(0)  # the shard that it stands for
        self._versions: tuple[int, ...] = ()
        self._start: Tensor | None = None  # our row of what was held when it was saved
        self._after: torch.Event | None = None
        self.gathers = 0

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """On a CPU FSDP reads straight out of what we keep; that it copies our own shard into it first is undone."""
        readable = device.type == "cpu" and dtype == torch.float32 and not self._unit.gathers_from_fewer()
        if self._held is not None and readable:
            return self._held.view(-1)
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if tuple(dist.get_process_group_ranks(group)) != self._door.ranks:
            # After forward the shards of fewer ranks hold all of it (`reshard_after_forward=2`), as all hold it.
            return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        if input_tensor.dtype not in FLOATS:
            raise ValueError(
                f"compress: {self._unit.name!r} is gathered as {input_tensor.dtype}, since its parameters have several "
                "dtypes or one of their own; give parameters=None"
            )
        stream = None if input_tensor.device.type == "cpu" else torch.accelerator.current_stream(input_tensor.device)
        if stream is not None and self._after is not None:
            stream.wait_event(self._after)  # FSDP gathers on one stream in forward, on another where asked to
        self._gather(output_tensor, input_tensor)
        self._after = None if stream is None else stream.record_event()
        return None

    def reset(self) -> None:
        """Whatever the others hold, the next gather sends all as it is. For all ranks together."""
        self._held, self._start = None, None

    def as_held(self) -> Tensor:
        """This rank's shard as the others hold it, or will after the first gather."""
        if self._held is not None:
            return self._own
        if self._start is not None:
            return self._start
        return torch.cat([self._unit.shard(name).float() for name in self._unit.names]).to(self._unit.device)

    def start_with(self, held: Tensor) -> None:
        """Take this for the shard as the others hold it."""
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
            # By content too: what writes to `p.data` counts no versions.
            changed = versions != self._versions or not torch.equal(shard, self._sent)
        if changed and not self._send_difference(shard):
            self._send_whole(shard.float())
        self._versions = versions
        self._sent = shard.clone()
        self._give(output)

    def _send_whole(self, own: Tensor) -> None:
        n = self._door.world_size
        parts = self._door.all_gather(own.contiguous(), [own.nbytes] * n, channel=self._channel).wait()
        with torch.inference_mode(False):  # a first gather may be an evaluation's
            self._held = torch.stack([data.view(torch.float32) for data in parts])
            self._own = own.clone()

    def _send_difference(self, shard: Tensor) -> bool:
        """False on all ranks where one's was not finite."""
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
        for peer, theirs in enumerate(gathers):
            if theirs != self.gathers:
                raise RuntimeError(
                    f"rank {self._door.ranks[self._door.rank]} changed parameters of {self._unit.name!r} before gather "
                    f"{self.gathers}, rank {self._door.ranks[peer]} before gather {theirs}: change them on all ranks "
                    "in the same steps, in place on the parameter itself, not on its .data"
                )

    def _give(self, output: Tensor) -> None:
        assert self._held is not None
        self._held[self._door.rank] = self._own
        if output.data_ptr() != self._held.data_ptr():
            output.view(self._held.shape).copy_(self._held)

    def _seed_of(self, rank: int) -> int:
        return seed_from(self._seed, self.gathers, self._unit.number, rank)
