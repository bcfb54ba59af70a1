"""Workload `policies`: compare cache policies by the rows fetched in the same sampled epochs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thinwire.bench import columns, methods
from thinwire.bench.case import Case
from thinwire.bench.fullgraph import set_up
from thinwire.graphs import TRAIN
from thinwire.links import Door
from thinwire.minibatch import POLICIES, Salient, Topology
from thinwire.minibatch.policies import Question, capacity, choose, worth
from thinwire.minibatch.schedule import schedule_of
from thinwire.minibatch.topology import Array

__all__ = ["CAPTION", "COLUMNS", "check", "prepare", "set_up", "step", "summary", "units"]

SALIENT = Salient.name
ALPHAS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)


def _rows_at(alpha: str) -> columns.Column:
    return columns.Column(alpha, lambda row: f"{row.figure('remote_rows')[alpha] / 1e3:,.1f}")


COLUMNS = tuple(_rows_at(str(alpha)) for alpha in ALPHAS)
CAPTION = "rows fetched from other ranks in an epoch, in thousands, by replication factor"


def check(names: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    for name in names:
        if name not in POLICIES:
            raise ValueError(f"{name!r} is no way to choose a cache; give some of {', '.join(POLICIES)}")
    methods.check((SALIENT,), settings, {})


@dataclass(frozen=True)
class Touched:
    """`times`: how often this rank's batches touch each vertex of other ranks. `question`: what a policy may know."""

    question: Question
    times: Array


def prepare(door: Door, case: Case, folder: Path) -> Touched:
    job = methods.job_of(SALIENT, case.settings, case.seed)
    topology = Topology.read(folder / "shards")
    schedule = schedule_of(topology.members(TRAIN), door.rank, job.method.batch, job.seed)
    question = Question(topology, schedule, job.method.fanouts, job.epochs, job.method.threads)
    times = question.touched(range(job.epochs))
    times[topology.starts[door.rank] : topology.starts[door.rank + 1]] = 0.0
    return Touched(question, times)


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, prepared: Touched, case: Case, seed: int) -> dict[str, Any]:
    question, times = prepared.question, prepared.times
    best = times if method == "oracle" else worth(method, question)  # the oracle knows the actual accesses
    topology = question.topology
    rows = []
    for alpha in ALPHAS:
        kept = choose(best, capacity(alpha, topology.num_nodes, topology.num_parts))
        rows.append(float(times.sum() - times[kept].sum()) / question.epochs)
    summed = door.all_reduce(torch.tensor(rows, dtype=torch.float64), channel="bench").wait()
    return {"remote_rows": dict(zip(map(str, ALPHAS), summed.tolist(), strict=True))}


def summary(case: Case, method: str, lines: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Any]:
    """Rows by replication factor: their number, how many times fewer than without a cache, and over the oracle's."""
    rows = lines[method][-1]["remote_rows"]
    figures: dict[str, Any] = {"remote_rows": rows}
    figures["fewer"] = {alpha: rows["0.0"] / max(1.0, count) for alpha, count in rows.items()}
    if lines.get("oracle"):
        best = lines["oracle"][-1]["remote_rows"]
        figures["to_oracle"] = {alpha: count / max(1.0, best[alpha]) for alpha, count in rows.items()}
    return figures
