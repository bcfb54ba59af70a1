"""Workload `bits`: ways to spend bits on the same real messages, by the variance and the objective they come to.

A model is trained for some epochs on shards; then each method assigns 2, 4 or 8 bits to the messages of one epoch:

    uniform     4 bits each
    random      2, 4 and 8 in shares of 2 : 2 : 1, so that bytes are the same; the mean of a few draws
    adaptive    the same bytes for each pair, spent by variance
    trade       AdaQP's objective, solved row by row
    grouped     AdaQP's objective as it was published: rows by variance, in groups of a fixed size
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thinwire.bench import columns, methods
from thinwire.bench.case import Case
from thinwire.bench.fullgraph import set_up
from thinwire.codecs.twins.rows import row_bytes
from thinwire.fullgraph import bits_solver
from thinwire.fullgraph.bits_solver import Outline, Pair, Scale
from thinwire.fullgraph.curve import Array, Curve, Ints
from thinwire.links import Door
from thinwire.links.cost import Hinge

__all__ = ["CAPTION", "COLUMNS", "check", "prepare", "set_up", "step", "summary", "units"]

BITS = (2, 4, 8)
METHODS = ("uniform", "random", "adaptive", "trade", "grouped")
DRAWS = 5
# Any rate: it cancels out where all pairs have the same.
LINE = Hinge(0.0, 0.0, 1e-8)
COLUMNS = (
    columns.Column("variance", lambda row: f"{row.figure('variance_to_uniform', 1.0):.3f}"),
    columns.Column("worst", lambda row: f"{row.figure('worst_to_uniform', 1.0):.3f}"),
    columns.figure("objective", "objective", ".4f"),
)
CAPTION = (
    "weighted variance beside `uniform`, the mean of all layers and directions and the worst of them; AdaQP's objective"
)


def check(names: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    for name in names:
        if name not in METHODS:
            raise ValueError(f"{name!r} is no way to spend bits; give some of {', '.join(METHODS)}")
    methods.check((), settings, {"group_size": int})


@dataclass(frozen=True)
class Exchange:
    """One layer's messages in one direction: of each ordered pair the rows' errors at each of BITS."""

    channel: str
    sizes: Array
    errors: list[Array]
    rounds: list[int]

    def spent(self, chosen: list[Ints]) -> tuple[float, float, float]:
        """Variance, bytes and objective of a choice for each row."""
        pairs = [
            Pair(number, LINE, Outline.of(Curve.of(self.sizes, each)))
            for number, each in zip(self.rounds, self.errors, strict=True)
        ]
        both = zip(self.errors, chosen, strict=True)
        variance = sum(float(np.take_along_axis(errors, own[:, None], 1).sum()) for errors, own in both)
        sizes = [float(self.sizes[c].sum()) for c in chosen]
        return variance, sum(sizes), Scale.of(pairs, 0.5, 0.0).objective(variance, bits_solver.seconds(pairs, sizes))


def prepare(door: Door, case: Case, folder: Path) -> list[Exchange]:
    """Train, and gather what every rank's messages of the last epoch would add."""
    from thinwire.fullgraph.run import Run  # with PyG, which only ranks need

    epochs = int(case.settings.get("epochs", 20))
    settings = {**case.settings, "bits_choice": "2,4,8", "assign_every": epochs}  # looks in the last one
    shard, manifest = methods.loaded(door, folder)
    run = Run(methods.job_of("adaqp", settings, case.seed), shard, door, manifest)
    for epoch in range(epochs):
        run.step(epoch)
    return [_gathered(door, run, halo, wire) for halo in run.distributed.halos for wire in halo.wires() if wire.width]


def _gathered(door: Door, run: Any, halo: Any, wire: Any) -> Exchange:
    own = run.distributed.assigner.errors(halo, wire, BITS).contiguous()
    counts = torch.zeros(door.world_size, door.world_size, dtype=torch.float64)
    counts[door.rank] = torch.tensor(wire.send_to, dtype=torch.float64)
    counted = door.all_reduce(counts, channel="bench").wait().long()
    sizes = [int(row.sum()) * 8 * len(BITS) for row in counted]
    everybodys = door.all_gather(own, sizes, channel="bench").wait()
    parts = [
        part.clone().view(torch.float64).view(-1, len(BITS)).split(row.tolist())
        for part, row in zip(everybodys, counted, strict=True)
    ]
    pairs = [(src, dst) for src, dst in permutations(range(door.world_size), 2) if counted[src, dst]]
    return Exchange(
        wire.channel,
        np.array([float(row_bytes(wire.width, bits)) for bits in BITS]),
        [parts[src][dst].numpy() for src, dst in pairs],
        [(dst - src) % door.world_size for src, dst in pairs],
    )


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, prepared: list[Exchange], case: Case, seed: int) -> dict[str, Any]:
    found = {}
    for each in prepared:
        variance, size, objective = _figures(method, each, case, np.random.default_rng(seed))
        found[each.channel] = {"variance": variance, "message_bytes": size, "objective": objective}
    return {"exchanges": found}


def _figures(method: str, each: Exchange, case: Case, randomness: np.random.Generator) -> tuple[float, float, float]:
    if method == "random":
        drawn = [each.spent([_drawn(len(e), randomness) for e in each.errors]) for _ in range(DRAWS)]
        variance, size, objective = (statistics.mean(column) for column in zip(*drawn, strict=True))
        return variance, size, objective
    if method == "uniform":
        return each.spent([np.full(len(e), 1) for e in each.errors])
    if method == "adaptive":
        even = [len(e) * float(each.sizes[1]) for e in each.errors]
        curves = [Curve.of(each.sizes, e) for e in each.errors]
        return each.spent([c.within(budget).choices() for c, budget in zip(curves, even, strict=True)])
    group = 1 if method == "trade" else int(case.settings.get("group_size", 100))
    return each.spent(_assigned(each, group))


def _drawn(count: int, randomness: np.random.Generator) -> Ints:
    """2, 4 and 8 bits in shares of 2 : 2 : 1, in any order; what is left over has 4."""
    chosen = np.full(count, 1)
    chosen[: 2 * (count // 5)] = 0
    chosen[2 * (count // 5) : 3 * (count // 5)] = 2
    return randomness.permutation(chosen)


def _assigned(each: Exchange, group: int) -> list[Ints]:
    """By the objective, `group` rows of like variance at a time; a short last group counts as a full one."""
    orders = [np.argsort(-e[:, 1], kind="stable") for e in each.errors]
    curves = []
    for errors, order in zip(each.errors, orders, strict=True):
        padded = np.zeros((-(-len(errors) // group) * group, len(BITS)))
        padded[: len(errors)] = errors[order]
        curves.append(Curve.of(each.sizes * group, padded.reshape(-1, group, len(BITS)).sum(axis=1)))
    found = bits_solver.assign(curves, each.rounds, [LINE] * len(curves))
    chosen: list[Ints] = []
    for errors, order, choices in zip(each.errors, orders, found.choices, strict=True):
        own = np.empty(len(errors), dtype=np.int64)
        own[order] = np.repeat(choices, group)[: len(errors)]
        chosen.append(own)
    return chosen


def summary(case: Case, method: str, lines: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Any]:
    """Beside `uniform`, exchange by exchange: the least and the most favourable."""
    own, even = lines[method][-1]["exchanges"], lines["uniform"][-1]["exchanges"] if lines.get("uniform") else {}
    ratios = {channel: own[channel]["variance"] / max(even[channel]["variance"], 1e-300) for channel in even}
    found: dict[str, Any] = {"exchanges": own, "objective": statistics.mean(e["objective"] for e in own.values())}
    if ratios:
        found |= {"variance_to_uniform": statistics.mean(ratios.values()), "worst_to_uniform": max(ratios.values())}
    return found
