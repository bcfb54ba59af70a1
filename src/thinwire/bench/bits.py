"""Workload `bits`: assign bits to the same real messages in several ways, compared by variance and objective.

A model is trained for some epochs on shards. Then each method assigns 2, 4 or 8 bits to the messages of one epoch:

    uniform     4 bits for each row
    random      2, 4 and 8 bits in shares of 2 : 2 : 1, which makes the same bytes; the mean of a few draws
    adaptive    the same bytes for each pair, assigned by variance
    trade       AdaQP's objective, solved row by row
    grouped     AdaQP's objective as published: rows sorted by variance, in groups of a fixed size
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
# Any rate will do: it cancels out, since all pairs have the same.
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
    """One layer's messages in one direction. `errors`: for each ordered pair, the rows' errors at each of BITS."""

    channel: str
    sizes: Array
    errors: list[Array]
    rounds: list[int]

    def spent(self, chosen: list[Ints]) -> tuple[float, float, float]:
        """Variance, bytes and objective if each row gets its chosen bits."""
        pairs = [
            Pair(number, LINE, Outline.of(Curve.of(self.sizes, errors)))
            for number, errors in zip(self.rounds, self.errors, strict=True)
        ]
        errors_and_choices = zip(self.errors, chosen, strict=True)
        variance = sum(
            float(np.take_along_axis(errors, pair_choices[:, None], 1).sum())
            for errors, pair_choices in errors_and_choices
        )
        sizes = [float(self.sizes[choices].sum()) for choices in chosen]
        return variance, sum(sizes), Scale.of(pairs, 0.5, 0.0).objective(variance, bits_solver.seconds(pairs, sizes))


def prepare(door: Door, case: Case, folder: Path) -> list[Exchange]:
    """Train, then gather the errors that all ranks' messages of the last epoch would have."""
    from thinwire.fullgraph.run import Run  # imports PyG, which only ranks need

    epochs = int(case.settings.get("epochs", 20))
    settings = {**case.settings, "bits_choice": "2,4,8", "assign_every": epochs}  # measures in the last epoch
    shard, manifest = methods.loaded(door, folder)
    run = Run(methods.job_of("adaqp", settings, case.seed), shard, door, manifest)
    for epoch in range(epochs):
        run.step(epoch)
    return [_gathered(door, run, halo, wire) for halo in run.distributed.halos for wire in halo.wires() if wire.width]


def _gathered(door: Door, run: Any, halo: Any, wire: Any) -> Exchange:
    errors = run.distributed.assigner.errors(halo, wire, BITS).contiguous()
    counts = torch.zeros(door.world_size, door.world_size, dtype=torch.float64)
    counts[door.rank] = torch.tensor(wire.send_to, dtype=torch.float64)
    counted = door.all_reduce(counts, channel="bench").wait().long()
    sizes = [int(row.sum()) * 8 * len(BITS) for row in counted]
    gathered = door.all_gather(errors, sizes, channel="bench").wait()
    parts = [
        part.clone().view(torch.float64).view(-1, len(BITS)).split(row.tolist())
        for part, row in zip(gathered, counted, strict=True)
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
    figures = {}
    for exchange in prepared:
        variance, size, objective = _figures(method, exchange, case, np.random.default_rng(seed))
        figures[exchange.channel] = {"variance": variance, "message_bytes": size, "objective": objective}
    return {"exchanges": figures}


def _figures(
    method: str, exchange: Exchange, case: Case, randomness: np.random.Generator
) -> tuple[float, float, float]:
    if method == "random":
        drawn = [exchange.spent([_drawn(len(errors), randomness) for errors in exchange.errors]) for _ in range(DRAWS)]
        variance, size, objective = (statistics.mean(column) for column in zip(*drawn, strict=True))
        return variance, size, objective
    if method == "uniform":
        return exchange.spent([np.full(len(errors), 1) for errors in exchange.errors])
    if method == "adaptive":
        even = [len(errors) * float(exchange.sizes[1]) for errors in exchange.errors]
        curves = [Curve.of(exchange.sizes, errors) for errors in exchange.errors]
        return exchange.spent([curve.within(budget).choices() for curve, budget in zip(curves, even, strict=True)])
    group = 1 if method == "trade" else int(case.settings.get("group_size", 100))
    return exchange.spent(_assigned(exchange, group))


def _drawn(count: int, randomness: np.random.Generator) -> Ints:
    """2, 4 and 8 bits in shares of 2 : 2 : 1, in random order. Left-over rows get 4."""
    chosen = np.full(count, 1)
    chosen[: 2 * (count // 5)] = 0
    chosen[2 * (count // 5) : 3 * (count // 5)] = 2
    return randomness.permutation(chosen)


def _assigned(exchange: Exchange, group: int) -> list[Ints]:
    """Choices by the objective, for groups of `group` rows of similar variance. A short last group counts as full."""
    orders = [np.argsort(-errors[:, 1], kind="stable") for errors in exchange.errors]
    curves = []
    for errors, order in zip(exchange.errors, orders, strict=True):
        padded = np.zeros((-(-len(errors) // group) * group, len(BITS)))
        padded[: len(errors)] = errors[order]
        curves.append(Curve.of(exchange.sizes * group, padded.reshape(-1, group, len(BITS)).sum(axis=1)))
    assignment = bits_solver.assign(curves, exchange.rounds, [LINE] * len(curves))
    chosen: list[Ints] = []
    for errors, order, choices in zip(exchange.errors, orders, assignment.choices, strict=True):
        row_choices = np.empty(len(errors), dtype=np.int64)
        row_choices[order] = np.repeat(choices, group)[: len(errors)]
        chosen.append(row_choices)
    return chosen


def summary(case: Case, method: str, lines: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Any]:
    """Variance over that of `uniform`, exchange by exchange: the mean and the worst."""
    exchanges, even = lines[method][-1]["exchanges"], lines["uniform"][-1]["exchanges"] if lines.get("uniform") else {}
    ratios = {channel: exchanges[channel]["variance"] / max(even[channel]["variance"], 1e-300) for channel in even}
    summed: dict[str, Any] = {
        "exchanges": exchanges,
        "objective": statistics.mean(figures["objective"] for figures in exchanges.values()),
    }
    if ratios:
        summed |= {"variance_to_uniform": statistics.mean(ratios.values()), "worst_to_uniform": max(ratios.values())}
    return summed
