"""Workload `pipeline`: iterations of a pipeline, one stage per rank, each method with its own copy of the model.

gpipe | 1f1b | eager     the schedule; transfers overlap with computation
--blocking               each send is waited for at once
--split                  backward in two parts; that of the weights runs during the transfer
--split --delay N        the weights' part runs N micro-batches later

With `forward_ms` in the case, compute is paced: each action lasts as long as on its own host, by sleeping for the rest,
since the work of several hosts does not fit the cores of one machine. Transfers are real.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from thinwire.bench import columns, stages, tasks
from thinwire.bench.case import Case
from thinwire.crossmesh.pipelines import schedule as schedules
from thinwire.crossmesh.pipelines.edges import Edge
from thinwire.crossmesh.pipelines.profiling import profile
from thinwire.crossmesh.pipelines.run import Pipeline
from thinwire.crossmesh.pipelines.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from thinwire.crossmesh.pipelines.simulator import simulate
from thinwire.links import Door

SCHEDULES = {"gpipe": schedules.gpipe, "1f1b": schedules.one_f_one_b, "eager": schedules.eager_1f1b}
SETTINGS = {
    "task": str,
    "microbatches": int,
    "rows": int,  # of a micro-batch
    "layers": int,  # of a stage
    "width": int,
    "skip_width": int,
    "forward_ms": int,
    "text": str,
}
LR = 0.05


@dataclass(frozen=True)
class Method:
    """What the words of a method ask for."""

    schedule: str
    blocking: bool = False
    split: bool = False
    delay: int = 0

    @staticmethod
    def parse(text: str) -> "Method":
        name, *words = text.split()
        if name not in SCHEDULES:
            raise ValueError(f"method {text!r}: the schedule {name!r} is not known; give {', '.join(SCHEDULES)}")
        delay = 0
        if "--delay" in words:
            place = words.index("--delay")
            if "--split" not in words or place + 1 == len(words) or not words[place + 1].isdigit():
                raise ValueError(f"method {text!r}: give --split --delay and a number")
            delay = int(words[place + 1])
            del words[place : place + 2]
        unknown = set(words) - {"--blocking", "--split"}
        if unknown:
            raise ValueError(f"method {text!r}: there is no {min(unknown)}; give --blocking, --split, --delay N")
        return Method(name, "--blocking" in words, "--split" in words, delay)

    def build(self, num_stages: int, num_microbatches: int) -> Schedule:
        schedule = SCHEDULES[self.schedule](num_stages, num_microbatches)
        return schedules.split(schedule, delay=self.delay) if self.split else schedule


COLUMNS = (
    columns.SECONDS,
    columns.FROM_TO,
    columns.RATIO,
    columns.PREDICTED,
    columns.Column("kept", lambda row: ",".join(map(str, row.figure("peak_activations")))),
)
CAPTION = "median of {} interleaved runs; kept: the most activations, in micro-batches, that each stage kept"


def check(methods: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    for method in methods:
        Method.parse(method)
    for name, value in settings.items():
        if name not in SETTINGS or type(value) is not SETTINGS[name]:
            raise ValueError(f"settings: {name} = {value!r}; known are {', '.join(SETTINGS)}")
    if settings.get("task", stages.GPT) not in (stages.GPT, stages.UNET):
        raise ValueError(f"settings: task is {settings['task']!r}; give {stages.GPT} or {stages.UNET}")


def set_up(case: Case, folder: Path) -> None:
    """Nothing to do: ranks make their own data."""


def prepare(door: Door, case: Case, folder: Path) -> dict[str, "Iterations"]:
    """Each method's pipeline, warmed up, with its predicted time. Predictions share one profile of stages and wires."""
    by_method = {method: Iterations(method, case, door) for method in case.methods}
    for iterations in by_method.values():
        iterations.warm_up()
    costs = profile([iterations.pipe for iterations in by_method.values()], door, hosts=range(door.world_size))
    # Transfer times out of the first stage (boundary and skip) over its forward time: the ratio that the case aims at.
    shares = {wire.name: wire.forward_s / costs.stages[0].forward_s for wire in costs.wires if wire.source == 0}
    for iterations in by_method.values():
        iterations.facts["transfer_shares"] = shares
        iterations.facts["predicted_s"] = simulate(
            iterations.schedule, costs, blocking=iterations.method.blocking
        ).seconds
    return by_method


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, prepared: dict[str, "Iterations"], case: Case, seed: int) -> dict[str, Any]:
    return prepared[method].take()


def summary(case: Case, method: str, by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    last = by_method[method][-1]
    return {name: last[name] for name in ("predicted_s", "loss", "peak_activations", "transfer_shares")}


def edges_of(case: Case, num_stages: int) -> tuple[Edge, ...]:
    return stages.edges_of(case.settings.get("task", stages.GPT), num_stages)


class Iterations:
    """One method's training, one iteration at a time."""

    def __init__(self, method: str, case: Case, door: Door) -> None:
        self.method = Method.parse(method)
        settings = case.settings
        n, stage = door.world_size, door.rank
        self._door, self._seed = door, case.seed
        m = int(settings.get("microbatches", 16))
        self._size = m * int(settings.get("rows", 8))
        self.schedule = self.method.build(n, m)
        text = {key: settings[key] for key in ("text",) if key in settings}
        self._task = tasks.task_of({"task": "gpt", **text})
        letters = self._task.build().embedding
        assert isinstance(letters, nn.Embedding)
        vocabulary = letters.num_embeddings
        torch.manual_seed(case.seed + stage)  # so that a stage starts with the same weights for every method
        skip_width = int(settings.get("skip_width", 16)) if settings.get("task") == stages.UNET else 0
        width, layers = int(settings.get("width", 64)), int(settings.get("layers", 1))
        model = stages.Part(stage, n, vocabulary, layers, width, skip_width)
        pace_s = int(settings.get("forward_ms", 0)) / 1e3
        least_s = {FORWARD: pace_s, BACKWARD: 2 * pace_s, INPUT: pace_s, WEIGHT: pace_s}
        self._optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        self.pipe = Pipeline(
            model,
            [(rank,) for rank in range(n)],
            self.schedule,
            door,
            loss=_loss,
            edges=edges_of(case, n),
            blocking=self.method.blocking,
            least_s=least_s,
        )
        self._number = 0
        self.facts: dict[str, Any] = {}

    def take(self) -> dict[str, Any]:
        loss = self._iterate()
        gathered = self._door.gather(torch.tensor([loss, self.pipe.peak_activations]), channel="harness")
        peaks = [int(peak) for peak in gathered[:, 1]]
        return self.facts | {"loss": float(gathered[-1, 0]), "peak_activations": peaks}

    def warm_up(self) -> None:
        """Run two iterations: the first also sends shapes, the second is like all others."""
        for _ in range(2):
            self._iterate()

    def _iterate(self) -> float:
        x, y = self._task.batch(self._size, 0, self._number, self._seed)
        first, last = self.pipe.stage == 0, self.pipe.stage == self.schedule.num_stages - 1
        self._optimizer.zero_grad()
        loss = self.pipe.step(x if first else None, y if last else None)
        self._optimizer.step()
        self._number += 1
        return 0.0 if loss is None else float(loss)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
