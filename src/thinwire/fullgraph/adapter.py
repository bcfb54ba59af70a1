"""Sylvie's 3D-adaptive variant in a run: all ranks choose the base of bits and the mode together, from the loss.

Each rank tells its share of the loss and its seconds, and all compute the same from them. Nothing else is sent: both
ends of a message know the degrees of its rows.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thinwire.codecs import Mixed
from thinwire.fullgraph.assigner import Assigner
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.methods.sylvie3d import LOOKED_AT, WIDTHS, Speed, Sylvie3D, bits_by_degree
from thinwire.fullgraph.wire import Codecs, Wire
from thinwire.graphs import Shard
from thinwire.links import Door

CHANNEL = "bits"
BEGINS = "the run begins with it"
ROSE = f"the loss's speed never rose in {LOOKED_AT} epochs"
FELL = f"the loss's speed never fell in {LOOKED_AT} epochs"


class Adapter(Assigner):
    """The base and the mode in force, and by what they change."""

    def __init__(self, door: Door, shard: Shard, method: Sylvie3D) -> None:
        super().__init__(door, method)
        self._method, self._shard = method, shard
        self.base: int = method.base
        self.pipelined = method.may_be_stale
        self._fresh = -1  # the epoch with which the base in force began: a synchronous one
        self._speed = Speed()
        self._begun = False  # whether the first record was made
        self._event: dict[str, Any] = {}
        self._codecs: Codecs | None = None

    def codecs(self) -> Codecs:
        """For each peer by the degrees of the rows that it reads, or that are read from it."""
        if self._codecs is None:
            shard = self._shard
            sent = shard.in_degree.index_select(0, shard.send_rows).split(list(shard.send_to))
            read = shard.in_degree[shard.num_owned :].split(list(shard.halo_from))
            self._codecs = Codecs(
                [Mixed(bits_by_degree(degrees, self.base)) for degrees in sent],
                [Mixed(bits_by_degree(degrees, self.base)) for degrees in read],
            )
        return self._codecs

    def is_stale(self, epoch: int) -> bool:
        # What is under way from before a change is received, and not used.
        return self.pipelined and epoch != self._fresh and super().is_stale(epoch)

    def event(self) -> dict[str, Any]:
        return self._event

    def after_epoch(self, halos: Sequence[Halo], epoch: int, seconds: float, loss: float | None) -> None:
        """Note the loss, and choose the base and the mode of the next epoch."""
        start = time.perf_counter()
        self._event = {"base_bits": self.base}
        wires = [wire for halo in halos for wire in halo.wires() if wire.width]
        if not self._begun:
            self._begun = True
            self._record(halos, wires, epoch, BEGINS, [], start)
        share = torch.tensor([0.0 if loss is None else loss, float(loss is None), seconds], dtype=torch.float64)
        losses, missing, took_s = self._door.gather(share, channel=CHANNEL).T.tolist()
        if any(missing):
            ranks = ", ".join(str(rank) for rank, flag in enumerate(missing) if flag)
            raise ValueError(
                f"{self._method.name} chooses bits by the loss, and rank {ranks} noted none in epoch {epoch + 1}; call "
                "model.distributed.note_loss(loss) before loss.backward(), on all ranks"
            )
        self._speed.add(sum(losses), took_s[0] if self._method.clock == "seconds" else 1.0)
        speeds, before = self._speed.last, self.base
        self.base = self._speed.base(before)
        if self.base == before:
            return
        self.pipelined = self._method.may_be_stale and self.base < before
        self._fresh, self._codecs = epoch + 1, None
        self._record(halos, wires, epoch + 1, ROSE if self.base > before else FELL, speeds, start)

    def state(self) -> dict[str, Any]:
        own = {"base": self.base, "pipelined": self.pipelined, "fresh": self._fresh, "speed": self._speed.to_json()}
        return {"adapted": {**own, "begun": self._begun}}

    def restore(self, facts: Mapping[str, Any], *, same: bool) -> None:
        """Also with another number of ranks: the loss is that of the whole graph."""
        own = facts.get("adapted")
        if own is None:  # saved by a single rank, which sends nothing
            return
        self.base, self.pipelined, self._fresh = own["base"], own["pipelined"], own["fresh"]
        self._speed, self._begun, self._codecs = Speed.from_json(own["speed"]), same and own["begun"], None

    def _record(
        self, halos: Sequence[Halo], wires: Sequence[Wire], epoch: int, why: str, speeds: list[float], start: float
    ) -> None:
        """The record of what is in force from this epoch on, summed over all ranks."""
        n, rank, codecs = self._door.world_size, self._door.rank, self.codecs()
        forward = {halo.forward.channel for halo in halos}
        sizes = torch.zeros(len(wires), n, n, dtype=torch.float64)
        rows = torch.zeros(len(wires), len(WIDTHS), dtype=torch.float64)
        for number, wire in enumerate(wires):
            out = (codecs if wire.channel in forward else codecs.back).out
            for peer, (codec, count) in enumerate(zip(out, wire.send_to, strict=True)):
                assert isinstance(codec, Mixed)
                sizes[number, rank, peer] = codec.nbytes((count, wire.width))
                rows[number] += torch.tensor([int((codec.bits == bits).sum()) for bits in WIDTHS])
        summed = self._door.all_reduce(torch.cat((sizes.flatten(), rows.flatten())), channel=CHANNEL).wait()
        matrices, counts = summed[: sizes.numel()].view_as(sizes), summed[sizes.numel() :].view_as(rows)
        messages = [
            {
                "channel": wire.channel,
                "rows_at_bits": {str(bits): int(c) for bits, c in zip(WIDTHS, count.tolist(), strict=True) if c},
                "predicted_bytes": int(matrix.sum()),
                "bytes_from_to": matrix.tolist(),
            }
            for wire, matrix, count in zip(wires, matrices, counts, strict=True)
        ]
        self.records.append(
            {
                "from_epoch": epoch,
                "base_bits": self.base,
                "pipelined": self.pipelined,
                "why": why,
                "speeds": speeds,
                "messages": messages,
                "predicted_bytes": sum(entry["predicted_bytes"] for entry in messages),
                "predicted_epoch_s": None,
                "trace_s": 0.0,
                "assign_s": time.perf_counter() - start,
            }
        )
