"""AdaQP's place in a run: from what was traced to bits for every message, chosen together by all ranks.

Senders know their rows and keep them: they tell each other outlines of their curves, find the same lengths of all
rounds, spend their own pairs' bytes, and tell the receivers what they chose.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.codecs import Mixed, seed_from
from thinwire.codecs.twins.rows import row_bytes
from thinwire.fullgraph import bits_solver
from thinwire.fullgraph.bits_solver import Outline, Pair, Scale
from thinwire.fullgraph.curve import Array, Curve
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.methods.adaqp import FIRST_BITS, AdaQP
from thinwire.fullgraph.pace import Pace
from thinwire.fullgraph.wire import Codecs, Wire
from thinwire.links import Door
from thinwire.links.cost import CostModel, Hinge
from thinwire.links.quick_probe import quick_probe

CHANNEL = "bits"
# The ends of the published choice.
MARKS = (2, 8)


@dataclass(frozen=True)
class _Exchange:
    """A wire to choose bits for: its choices by rising bytes, a curve for each peer."""

    wire: Wire
    bits: tuple[int, ...]
    sizes: Array
    curves: list[Curve]


@dataclass(frozen=True)
class _Note:
    """How an exchange was solved: what it is measured by, and this rank's part of what came out."""

    scale: Scale
    price: float
    variance: float
    least: float


class Assigner:
    """Called by all ranks alike."""

    def __init__(self, door: Door, method: AdaQP, cost: CostModel | None, device: torch.device, seed: int) -> None:
        self._door, self._method, self._seed = door, method, seed
        if cost is None and door.world_size > 1:
            cost = quick_probe(door, device)  # before the first epoch, so that every checkpoint has it
        self.cost = cost  # of the wires; one rank has none
        self.pace = Pace()
        self.records: list[dict[str, Any]] = []  # what was assigned, for plan.N.json

    def after_epoch(self, halos: Sequence[Halo], epoch: int, seconds: float) -> None:
        """Note how it went; and where a period ends, choose bits for the next one."""
        wires = [wire for halo in halos for wire in halo.wires()]
        self.pace.add(seconds, wires, looked=self._method.traces(epoch))
        if self._method.assigns(epoch):
            self._assign(halos, epoch + 1)
            self.pace.clear()

    def choosing_s(self) -> float:
        """What looking and choosing took so far, spread over the epochs that it is for."""
        return sum(record["assign_s"] + record["trace_s"] for record in self.records) / self._method.assign_every

    def _assign(self, halos: Sequence[Halo], epoch: int) -> None:
        """Bits for the epochs from this one on."""
        start = time.perf_counter()
        assert self.cost is not None
        used = [(halo, wire) for halo in halos for wire in halo.wires() if wire.width]
        if not used:  # a model of one layer: features cross once and nothing else does
            return
        exchanges = [self._exchange(halo, wire, epoch) for halo, wire in used]
        before = self._bytes_from_to([each.wire for each in exchanges], epoch)
        if not self._method.looks:
            rows = [self._random(each, number, epoch) for number, each in enumerate(exchanges)]
            notes: list[_Note] = []
        else:
            rows, notes = self._solved(exchanges)
        for each, bits in zip(exchanges, rows, strict=True):
            self._obey(each.wire, bits)
        after = self._bytes_from_to([each.wire for each in exchanges], epoch)
        record = self._record(exchanges, rows, notes, after)
        record["predicted_epoch_s"] = self.pace.predict(
            [each.wire.channel for each in exchanges],
            [self.cost.all_to_all(matrix) for matrix in before.tolist()],
            [self.cost.all_to_all(matrix) for matrix in after.tolist()],
            self._door,
        )
        record["trace_s"] = 0.0
        for each in exchanges:
            if each.wire.trace is not None:
                record["trace_s"] += each.wire.trace.took_s
                each.wire.trace.took_s = 0.0
        self.records.append({"from_epoch": epoch, **record, "assign_s": time.perf_counter() - start})

    def _exchange(self, halo: Halo, wire: Wire, epoch: int) -> _Exchange:
        bits, sizes = choices(self._method, wire, epoch)
        if not self._method.looks:
            return _Exchange(wire, bits, sizes, [])
        parts = self.errors(halo, wire, bits).split(wire.send_to)
        return _Exchange(wire, bits, sizes, [Curve.of(sizes, part.numpy(), marks(bits)) for part in parts])

    def errors(self, halo: Halo, wire: Wire, bits: Sequence[int]) -> Tensor:
        """What each row that this rank sends would add at each of these bits, by what it counts for: float64 [K, C]."""
        assert wire.trace is not None
        return wire.trace.errors(bits).double().cpu() * self._weights(halo, wire).cpu()[:, None]

    def _weights(self, halo: Halo, wire: Wire) -> Tensor:
        """What a row's variance counts for. Gradients come already summed: 1."""
        count = sum(wire.send_to)
        trace = wire.trace
        assert trace is not None
        if wire is halo.backward:
            return torch.ones(count, dtype=torch.float64)
        if halo.counts_by_gradient:
            # First order: what an error in this row does to the loss.
            assert trace.gradient is not None
            return (trace.gradient / wire.width).double()
        assert halo.reads is not None
        squares = halo.reads.column_sums(2) if self._method.weigh == "squares" else halo.reads.column_sums(1).square()
        parts = [part.contiguous() for part in squares.split(wire.receive_from)]
        received = self._door.all_to_all(parts, [4 * size for size in wire.send_to], channel=CHANNEL).wait()
        return torch.cat([part.clone().view(torch.float32) for part in received]).double()

    def _solved(self, exchanges: list[_Exchange]) -> tuple[list[Tensor], list["_Note"]]:
        """Bits of each exchange's rows on this rank, and how good they are."""
        n = self._door.world_size
        outlined = np.array([[Outline.of(curve).packed() for curve in each.curves] for each in exchanges])
        gathered = self._door.gather(torch.from_numpy(outlined), channel=CHANNEL).numpy()
        hidden = self.pace.hidden_s([each.wire.channel for each in exchanges], self._door)
        rows: list[Tensor] = []
        notes: list[_Note] = []
        for number, each in enumerate(exchanges):
            outlines = {
                (src, dst): Outline.unpacked(gathered[src, number, dst])
                for src, dst in itertools.permutations(range(n), 2)
                if gathered[src, number, dst, 1] > 0  # there are rows: the fewest bytes of one are more than none
            }
            pairs = [Pair((dst - src) % n, self._line(src, dst), each) for (src, dst), each in outlines.items()]
            free_s = hidden[number] - self._fixed_s() if self._method.assign == "hide" else 0.0
            scale = Scale.of(pairs, self._method.balance, free_s)
            found = bits_solver.lengths(pairs, scale)
            bits = np.zeros(sum(each.wire.send_to), dtype=np.uint8)
            variance = least = 0.0
            for (src, dst), pair, share in zip(outlines, pairs, found.shares, strict=True):
                if src == self._door.rank:
                    taken = each.curves[dst].within(pair.budget(found.seconds[pair.round]))
                    begin = sum(each.wire.send_to[:dst])
                    bits[begin : begin + each.wire.send_to[dst]] = np.array(each.bits, dtype=np.uint8)[taken.choices()]
                    variance += taken.variance
                    least += pair.least(each.curves[dst], share)
            rows.append(torch.from_numpy(bits))
            notes.append(_Note(scale, found.price, variance, least))
        return rows, notes

    def _line(self, src: int, dst: int) -> Hinge:
        assert self.cost is not None
        return Hinge(0.0, 0.0, self.cost.collectives["all_to_all"].slope / self.cost.links[src, dst].bytes_per_s)

    def _fixed_s(self) -> float:
        """What an exchange takes beyond its bytes."""
        assert self.cost is not None
        return max(0.0, self.cost.collectives["all_to_all"].fixed_s)

    def _random(self, each: _Exchange, number: int, epoch: int) -> Tensor:
        randomness = torch.Generator().manual_seed(seed_from(self._seed, epoch, number, self._door.rank))
        drawn = torch.randint(len(each.bits), (sum(each.wire.send_to),), generator=randomness)
        return torch.tensor(each.bits, dtype=torch.uint8)[drawn]

    def _obey(self, wire: Wire, bits: Tensor) -> None:
        """Choose codecs by bits; the receivers are sent theirs."""
        parts = [part.contiguous() for part in bits.split(wire.send_to)]
        received = self._door.all_to_all(parts, wire.receive_from, channel=CHANNEL).wait()
        obey(wire, bits, torch.cat([part.clone() for part in received]))

    def _bytes_from_to(self, wires: Sequence[Wire], epoch: int) -> Tensor:
        """Of each wire, of an epoch in the mean of a period: [wire, from, to]."""
        share = self._method.share_that_sends_all(epoch)
        own = torch.zeros(len(wires), self._door.world_size, self._door.world_size, dtype=torch.float64)
        for number, wire in enumerate(wires):
            for peer, count in enumerate(wire.send_to):
                usual, full = (c.out[peer].nbytes((count, wire.width)) for c in (wire.codecs, wire.full_codecs))
                own[number, self._door.rank, peer] = usual + (full - usual) * share
        return self._door.all_reduce(own, channel=CHANNEL).wait()

    def _record(
        self, exchanges: list[_Exchange], rows: list[Tensor], notes: list[_Note], after: Tensor
    ) -> dict[str, Any]:
        """What was chosen, over all ranks."""
        assert self.cost is not None
        counts = [[float((bits == width).sum()) for width in self._method.bits_choice] for bits in rows]
        figures = [[note.variance, note.least] for note in notes] or [[0.0, 0.0]] * len(rows)
        own = [[*count, *figure] for count, figure in zip(counts, figures, strict=True)]
        summed = self._door.all_reduce(torch.tensor(own, dtype=torch.float64), channel=CHANNEL).wait()
        messages = []
        for number, each in enumerate(exchanges):
            *count, variance, least = summed[number].tolist()
            matrix = after[number].tolist()
            entry: dict[str, Any] = {
                "channel": each.wire.channel,
                "rows_at_bits": {str(w): int(c) for w, c in zip(self._method.bits_choice, count, strict=True) if c},
                "predicted_bytes": int(sum(map(sum, matrix))),
                "bytes_from_to": matrix,
                "predicted_s": self.cost.all_to_all(matrix),
            }
            if notes:
                scale = notes[number].scale
                objective = scale.objective(variance, self._rounds_s(matrix))
                entry |= {"predicted_variance": variance, "free_s": scale.free_s, "objective": objective}
                entry |= {"gap": max(0.0, objective - scale.bound(least, notes[number].price))}
            messages.append(entry)
        return {"messages": messages, "predicted_bytes": sum(entry["predicted_bytes"] for entry in messages)}

    def _rounds_s(self, bytes_from_to: list[list[float]]) -> float:
        """As the objective counts it: each round as long as its slowest pair."""
        n = self._door.world_size
        return sum(
            max(self._line(src, (src + r) % n)(bytes_from_to[src][(src + r) % n]) for src in range(n))
            for r in range(1, n)
        )


def choices(method: AdaQP, wire: Wire, epoch: int) -> tuple[tuple[int, ...], Array]:
    """Bits to choose from by rising bytes a row, and these. Of choices that cost the same the one with the most bits.

    A row that is not sent costs its share of the epochs in which it is; where that is all of them it is no choice.
    """
    cost: dict[float, int] = {}
    for bits in method.bits_choice:
        if bits:
            cost[float(row_bytes(wire.width, bits))] = bits
        elif method.mean_age:
            cost.setdefault(row_bytes(wire.width, FIRST_BITS) * method.share_that_sends_all(epoch), 0)
    sizes = sorted(cost)
    return tuple(cost[size] for size in sizes), np.array(sizes)


def marks(bits: Sequence[int]) -> tuple[int, int]:
    """Which of these choices all others are measured by: 2 and 8 bits, or what comes nearest to them."""
    usual = [at for at, width in enumerate(bits) if MARKS[0] <= width <= MARKS[1]]
    return (usual[0], usual[-1]) if len(usual) > 1 else (0, -1)


def obey(wire: Wire, out: Tensor, into: Tensor) -> None:
    """Send and receive rows at these bits."""

    def codecs(out: Tensor, into: Tensor) -> Codecs:
        return Codecs(
            [Mixed(part) for part in out.split(wire.send_to)], [Mixed(part) for part in into.split(wire.receive_from)]
        )

    wire.bits = (out, into)
    wire.codecs = codecs(out, into)
    wire.full_codecs = codecs(*(torch.where(bits == 0, FIRST_BITS, bits).to(torch.uint8) for bits in (out, into)))
