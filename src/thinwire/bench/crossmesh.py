"""Workload `crossmesh`: move tensors from mesh to mesh, each strategy on every problem of the case.

A problem is written `2x4 S0 R -> 3x4 S0 R of 384x256x85`: two meshes with their placements, one host per mesh row, and
the tensor's shape. The destination's hosts come after the source's. Tensors are float32. Methods are strategies.
"""

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.bench import columns
from thinwire.bench.case import Case
from thinwire.crossmesh.broadcast import STRATEGIES
from thinwire.crossmesh.layout import Layout, region_shape
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import AUTO, Plan, plan
from thinwire.crossmesh.profiling import profile
from thinwire.crossmesh.run import start
from thinwire.links import Door

DTYPE = torch.float32
PROBLEM = re.compile(r"(?P<source>[\dx]+(?: \w+)+) -> (?P<destination>[\dx]+(?: \w+)+) of (?P<shape>[\dx]+)")
COLUMNS, CAPTION = columns.USUAL, columns.CAPTION


def check(methods: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    for method in methods:
        if method not in STRATEGIES and method != AUTO:
            raise ValueError(f"method {method!r} is not known; give {', '.join(STRATEGIES)} or {AUTO}")
    unknown = sorted(set(settings) - {"problems"})
    if unknown:
        raise ValueError(f"settings.{unknown[0]} is not known to crossmesh; known is problems")
    if not isinstance(settings.get("problems"), dict) or not settings["problems"]:
        raise ValueError("settings.problems is missing; give a table of them, like 1 = '2x4 S0 R -> 2x4 R R of 64x64'")
    for name, text in settings["problems"].items():
        try:
            parse(text, ranks_per_host=1 << 10)
        except ValueError as error:
            raise ValueError(f"settings.problems.{name}: {error}") from None


def parse(text: str, *, ranks_per_host: int) -> tuple[Layout, Layout]:
    """The source and destination layouts of a problem."""
    match = PROBLEM.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is no problem; write it like '2x4 S0 R -> 3x4 S0 R of 384x256x85'")
    shape = _numbers(match["shape"])
    layouts: list[Layout] = []
    host = 0
    for side in (match["source"], match["destination"]):
        mesh_text, *words = side.split()
        mesh = _numbers(mesh_text)
        if len(mesh) != 2:
            raise ValueError(f"mesh {mesh_text}: give hosts x ranks, for example 2x4")
        if mesh[1] > ranks_per_host:
            raise ValueError(
                f"mesh {mesh_text}: {mesh[1]} ranks a host, the case has ranks_per_host = {ranks_per_host}"
            )
        ranks = [(host + row) * ranks_per_host + column for row in range(mesh[0]) for column in range(mesh[1])]
        layouts.append(Layout(mesh, tuple(ranks), tuple(words), shape))
        host += mesh[0]
    return layouts[0], layouts[1]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("x"))


def set_up(case: Case, folder: Path) -> None:
    for name, text in case.settings["problems"].items():
        source, destination = parse(text, ranks_per_host=case.ranks_per_host)
        hosts = max((*source.ranks, *destination.ranks)) // case.ranks_per_host + 1
        if hosts > case.hosts:
            raise ValueError(f"settings.problems.{name} needs {hosts} hosts, the case has {case.hosts}")


@dataclass(frozen=True)
class Problem:
    """A tensor to move, with a plan for each method. `local` and `expected` are this rank's tiles before and after."""

    plans: Mapping[str, Plan]
    local: Tensor | None
    expected: Tensor | None


def prepare(door: Door, case: Case, folder: Path) -> dict[str, Problem]:
    network = profile(door)
    return {name: _problem(text, case, network, door.rank) for name, text in case.settings["problems"].items()}


def _problem(text: str, case: Case, network: Network, rank: int) -> Problem:
    source, destination = parse(text, ranks_per_host=case.ranks_per_host)
    plans = {
        method: plan(source, destination, itemsize=DTYPE.itemsize, network=network, strategy=method)
        for method in case.methods
    }
    return Problem(plans, _tile(source, rank), _tile(destination, rank))


def _tile(layout: Layout, rank: int) -> Tensor | None:
    """This rank's tile. Each value is its index in the tensor, so that misplaced values are noticed."""
    if rank not in layout.tiles:
        return None
    places = torch.zeros((), dtype=torch.float64)
    for ranges, size in zip(layout.tiles[rank], layout.shape, strict=True):
        indices = torch.cat([torch.arange(low, high) for low, high in ranges])
        places = places.unsqueeze(-1) * size + indices
    return places.view(region_shape(layout.tiles[rank])).to(DTYPE)


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, prepared: dict[str, Problem], case: Case, seed: int) -> dict[str, Any]:
    """Run all problems one after the other. The time of each is that of its slowest rank."""
    seconds: dict[str, float] = {}
    for name, problem in prepared.items():
        door.barrier(channel="harness")  # all begin together
        begin = time.perf_counter()
        if any(door.rank in layout.ranks for layout in _layouts(problem.plans[method])):
            moving = start(problem.plans[method], problem.local, door, name=name, dtype=DTYPE)
            out = moving.wait()
            taken = time.perf_counter() - begin
            if out is not None and problem.expected is not None and not torch.equal(out, problem.expected):
                raise ValueError(f"problem {name} by {method}: rank {door.rank} received other values than were sent")
        else:
            taken = 0.0
        seconds[name] = float(door.gather(taken, channel="harness").max())
    facts = {
        name: {
            "seconds": seconds[name],
            "predicted_s": problem.plans[method].predicted_s,
            "bound_s": problem.plans[method].bound_s,
            "host_bytes": problem.plans[method].host_bytes,
            "strategy": problem.plans[method].strategy,
        }
        for name, problem in prepared.items()
    }
    return {"problems": facts}


def _layouts(resharding: Plan) -> tuple[Layout, Layout]:
    return resharding.tensors[0].source, resharding.tensors[0].destination


def summary(case: Case, method: str, by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """For each problem: the median, compared with the first method, the prediction and the bound."""
    first = by_method[case.methods[0]]
    problems = {}
    for name, facts in by_method[method][-1]["problems"].items():
        median = statistics.median(line["problems"][name]["seconds"] for line in by_method[method])
        other = statistics.median(line["problems"][name]["seconds"] for line in first)
        problems[name] = dict(facts) | {
            "seconds": median,
            "ratio": other / median,
            "over_bound": median / facts["bound_s"] if facts["bound_s"] else None,
        }
    return {"problems": problems}
