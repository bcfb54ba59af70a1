"""AdaQP in a run: all ranks choose the bits of every message together, from traced variances.

Traces stay on the sending rank. Ranks exchange outlines of their curves, and all compute the same lengths of all
rounds from them. Each then chooses bits for the rows it sends, and sends the choice to the receivers.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.codecs import Mixed, seed_from
from thinwire.codecs.twins.rows import row_bytes
from thinwire.fullgraph import bits_solver
from thinwire.fullgraph.assigner import Assigner
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
# The fewest and the most bits of the published choice.
MARKS = (2, 8)


@dataclass(frozen=True)
class _Exchange:
    """A wire to choose bits for, the choices by rising bytes, and a curve for each peer."""

    wire: Wire
    bits: tuple[int, ...]
    sizes: Array
    curves: list[Curve]


@dataclass(frozen=True)
class _Note:
    """How an exchange was solved: the scale, the price of a second, and this rank's share of the result."""

    scale: Scale
    price: float
    variance: float
    least: float


class BitAssigner(Assigner):
    """Chooses bits at the end of each period."""

    def __init__(self, door: Door, method: AdaQP, cost: CostModel | None, device: torch.device, seed: int) -> None:
        super().__init__(door, method)
        self._method, self._seed = method, seed
        if cost is None and door.world_size > 1:
            cost = quick_probe(door, device)  # before the first epoch, so that every checkpoint has it
        self.cost = cost  # None on a single rank
        self.pace = Pace()

    def after_epoch(self, halos: Sequence[Halo], epoch: int, seconds: float, loss: float | None) -> None:
        """Record the epoch's times. At the end of a period, choose bits for the next one."""
        wires = [wire for halo in halos for wire in halo.wires()]
        self.pace.add(seconds, wires, looked=self._method.traces(epoch))
        if self._method.assigns(epoch):
            self._assign(halos, epoch + 1)
            self.pace.clear()

    def choosing_s(self) -> float:
        """Seconds of tracing and choosing so far, divided by the epochs of a period."""
        return sum(record["assign_s"] + record["trace_s"] for record in self.records) / self._method.assign_every

    def state(self) -> dict[str, Any]:
        return {} if self.cost is None else {"cost": self.cost.to_json(), "pace": self.pace.to_json()}

    def restore(self, facts: Mapping[str, Any], *, same: bool) -> None:
        """The links as measured before, so that the same bits are chosen."""
        if same and facts.get("cost") is not None:
            self.pace.restore(facts["pace"])
            self.cost = CostModel.from_json(facts["cost"])

    def _assign(self, halos: Sequence[Halo], epoch: int) -> None:
        """Choose bits for the epochs from this one on."""
        start = time.perf_counter()
        assert self.cost is not None
        used = [(halo, wire) for halo in halos for wire in halo.wires() if wire.width]
        if not used:  # a model of one layer: only features are sent, and only once
            return
        exchanges = [self._exchange(halo, wire, epoch) for halo, wire in used]
        before = self._bytes_from_to([exchange.wire for exchange in exchanges], epoch)
        if not self._method.looks:
            rows = [self._random(exchange, number, epoch) for number, exchange in enumerate(exchanges)]
            notes: list[_Note] = []
        else:
            rows, notes = self._solved(exchanges)
        for exchange, bits in zip(exchanges, rows, strict=True):
            self._obey(exchange.wire, bits)
        after = self._bytes_from_to([exchange.wire for exchange in exchanges], epoch)
        record = self._record(exchanges, rows, notes, after)
        record["predicted_epoch_s"] = self.pace.predict(
            [exchange.wire.channel for exchange in exchanges],
            [self.cost.all_to_all(matrix) for matrix in before.tolist()],
            [self.cost.all_to_all(matrix) for matrix in after.tolist()],
            self._door,
        )
        record["trace_s"] = 0.0
        for exchange in exchanges:
            if exchange.wire.trace is not None:
                record["trace_s"] += exchange.wire.trace.took_s
                exchange.wire.trace.took_s = 0.0
        self.records.append({"from_epoch": epoch, **record, "assign_s": time.perf_counter() - start})

    def _exchange(self, halo: Halo, wire: Wire, epoch: int) -> _Exchange:
        bits, sizes = choices(self._method, wire, epoch)
        if not self._method.looks:
            return _Exchange(wire, bits, sizes, [])
        parts = self.errors(halo, wire, bits).split(wire.send_to)
        return _Exchange(wire, bits, sizes, [Curve.of(sizes, part.numpy(), marks(bits)) for part in parts])

    def errors(self, halo: Halo, wire: Wire, bits: Sequence[int]) -> Tensor:
        """The weighted error of each row that this rank sends, at each of these bits: float64 [rows, choices]."""
        assert wire.trace is not None
        return wire.trace.errors(bits).double().cpu() * self._weights(halo, wire).cpu()[:, None]

    def _weights(self, halo: Halo, wire: Wire) -> Tensor:
        """The weight of each row's variance. For gradients it is 1: they are summed before they are sent."""
        count = sum(wire.send_to)
        trace = wire.trace
        assert trace is not None
        if wire is halo.backward:
            return torch.ones(count, dtype=torch.float64)
        if halo.counts_by_gradient:
            # To first order, the effect of an error in this row on the loss.
            assert trace.gradient is not None
            return (trace.gradient / wire.width).double()
        assert halo.reads is not None
        if self._method.weigh == "squares":
            weights = halo.read_weights(2)
        else:
            sums = halo.read_weights(1)
            weights = None if sums is None else sums.square()
        assert weights is not None
        return weights.double()

    def _solved(self, exchanges: list[_Exchange]) -> tuple[list[Tensor], list["_Note"]]:
        """The bits of this rank's rows in each exchange, and notes on how good they are."""
        n = self._door.world_size
        outlined = np.array([[Outline.of(curve).packed() for curve in exchange.curves] for exchange in exchanges])
        gathered = self._door.gather(torch.from_numpy(outlined), channel=CHANNEL).numpy()
        hidden = self.pace.hidden_s([exchange.wire.channel for exchange in exchanges], self._door)
        rows: list[Tensor] = []
        notes: list[_Note] = []
        for number, exchange in enumerate(exchanges):
            outlines = {
                (src, dst): Outline.unpacked(gathered[src, number, dst])
                for src, dst in itertools.permutations(range(n), 2)
                if gathered[src, number, dst, 1] > 0  # the pair has rows: the least bytes of a row are more than 0
            }
            pairs = [Pair((dst - src) % n, self._line(src, dst), outline) for (src, dst), outline in outlines.items()]
            free_s = hidden[number] - self._fixed_s() if self._method.assign == "hide" else 0.0
            scale = Scale.of(pairs, self._method.balance, free_s)
            lengths = bits_solver.lengths(pairs, scale)
            bits = np.zeros(sum(exchange.wire.send_to), dtype=np.uint8)
            variance = least = 0.0
            for (src, dst), pair, share in zip(outlines, pairs, lengths.shares, strict=True):
                if src == self._door.rank:
                    taken = exchange.curves[dst].within(pair.budget(lengths.seconds[pair.round]))
                    begin = sum(exchange.wire.send_to[:dst])
                    bits[begin : begin + exchange.wire.send_to[dst]] = np.array(exchange.bits, dtype=np.uint8)[
                        taken.choices()
                    ]
                    variance += taken.variance
                    least += pair.least(exchange.curves[dst], share)
            rows.append(torch.from_numpy(bits))
            notes.append(_Note(scale, lengths.price, variance, least))
        return rows, notes

    def _line(self, src: int, dst: int) -> Hinge:
        assert self.cost is not None
        return Hinge(0.0, 0.0, self.cost.collectives["all_to_all"].slope / self.cost.links[src, dst].bytes_per_s)

    def _fixed_s(self) -> float:
        """Seconds of an exchange that do not depend on its bytes."""
        assert self.cost is not None
        return max(0.0, self.cost.collectives["all_to_all"].fixed_s)

    def _random(self, exchange: _Exchange, number: int, epoch: int) -> Tensor:
        randomness = torch.Generator().manual_seed(seed_from(self._seed, epoch, number, self._door.rank))
        drawn = torch.randint(len(exchange.bits), (sum(exchange.wire.send_to),), generator=randomness)
        return torch.tensor(exchange.bits, dtype=torch.uint8)[drawn]

    def _obey(self, wire: Wire, bits: Tensor) -> None:
        """Set the wire's codecs to these bits, and send each receiver the bits of its rows."""
        parts = [part.contiguous() for part in bits.split(wire.send_to)]
        received = self._door.all_to_all(parts, wire.receive_from, channel=CHANNEL).wait()
        obey(wire, bits, torch.cat([part.clone() for part in received]))

    def _bytes_from_to(self, wires: Sequence[Wire], epoch: int) -> Tensor:
        """Bytes of each wire in an epoch, as a mean over a period: [wire, from, to]."""
        share = self._method.share_that_sends_all(epoch)
        size_bytes = torch.zeros(len(wires), self._door.world_size, self._door.world_size, dtype=torch.float64)
        for number, wire in enumerate(wires):
            for peer, count in enumerate(wire.send_to):
                usual, full = (c.out[peer].nbytes((count, wire.width)) for c in (wire.codecs, wire.full_codecs))
                size_bytes[number, self._door.rank, peer] = usual + (full - usual) * share
        return self._door.all_reduce(size_bytes, channel=CHANNEL).wait()

    def _record(
        self, exchanges: list[_Exchange], rows: list[Tensor], notes: list[_Note], after: Tensor
    ) -> dict[str, Any]:
        """The record of this choice, summed over all ranks."""
        assert self.cost is not None
        counts = [[float((bits == width).sum()) for width in self._method.bits_choice] for bits in rows]
        figures = [[note.variance, note.least] for note in notes] or [[0.0, 0.0]] * len(rows)
        numbers = [[*count, *figure] for count, figure in zip(counts, figures, strict=True)]
        summed = self._door.all_reduce(torch.tensor(numbers, dtype=torch.float64), channel=CHANNEL).wait()
        messages = []
        for number, exchange in enumerate(exchanges):
            *count, variance, least = summed[number].tolist()
            matrix = after[number].tolist()
            entry: dict[str, Any] = {
                "channel": exchange.wire.channel,
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
        """Seconds of all rounds, as the objective counts them: each round takes as long as its slowest pair."""
        n = self._door.world_size
        return sum(
            max(self._line(src, (src + r) % n)(bytes_from_to[src][(src + r) % n]) for src in range(n))
            for r in range(1, n)
        )


def choices(method: AdaQP, wire: Wire, epoch: int) -> tuple[tuple[int, ...], Array]:
    """The bits to choose from, and their bytes a row, in rising order. Of equal bytes, the most bits are kept.

    0 bits (not sent) cost the bytes of the epochs that send all rows. If all epochs do, 0 bits are no choice.
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
    """The two choices that the others are measured by: 2 and 8 bits, or the nearest to them."""
    usual = [at for at, width in enumerate(bits) if MARKS[0] <= width <= MARKS[1]]
    return (usual[0], usual[-1]) if len(usual) > 1 else (0, -1)


def obey(wire: Wire, out: Tensor, into: Tensor) -> None:
    """Set the wire's codecs to these bits."""

    def codecs(out: Tensor, into: Tensor) -> Codecs:
        return Codecs(
            [Mixed(part) for part in out.split(wire.send_to)], [Mixed(part) for part in into.split(wire.receive_from)]
        )

    wire.bits = (out, into)
    wire.codecs = codecs(out, into)
    wire.full_codecs = codecs(*(torch.where(bits == 0, FIRST_BITS, bits).to(torch.uint8) for bits in (out, into)))
