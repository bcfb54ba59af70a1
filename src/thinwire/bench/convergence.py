"""Workload `convergence`: whole runs of data-parallel training, one per seed, compared by final losses.

Methods are codecs of gradients (none, sign, topk:0.01, dgc:0.01, ...). `sign --no-feedback` is without error feedback.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from thinwire import gradients
from thinwire.bench import columns, tasks
from thinwire.bench.case import Case
from thinwire.gradients.algorithms import algorithm
from thinwire.links import Door

NO_FEEDBACK = "--no-feedback"
MORE = {"steps": int, "lr": float}
MOMENTUM_OF = 0.9
# The final loss is the mean over these batches, the same for all methods, with batch norms in eval mode.
FINAL_BATCHES, FINAL_SIZE, FINAL_SEED = 8, 64, 999
GROUPS = "equal:4"
COLUMNS = (
    columns.MB_SENT,
    columns.figure("loss", "loss", ".4f"),
    columns.Column("from-to", lambda row: f"{row.figure('loss_low'):.4f}-{row.figure('loss_high'):.4f}"),
    columns.Column("beside", lambda row: f"{row.figure('loss_ratio') - 1:+.1%}"),
)
CAPTION = "{} seeds; the mean of final losses, from-to, and beside the first method's"


def check(methods: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    tasks.check(settings, MORE)
    for method in methods:
        algorithm(*_taken_apart(method)[:1])


def set_up(case: Case, folder: Path) -> None:
    """Nothing to do: ranks make their own data."""


def prepare(door: Door, case: Case, folder: Path) -> tuple[Any, gradients.Profile]:
    task = tasks.task_of(case.settings)
    specs = [_taken_apart(method)[0] for method in case.methods]
    batch = task.batch(tasks.batch_size(case.settings), door.rank, 0, case.seed)
    return task, gradients.profile(task.build(), batch, task.loss, door, codecs=specs, steps=2)


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, prepared: Any, case: Case, seed: int) -> dict[str, Any]:
    task, profile = prepared
    spec, feedback = _taken_apart(method)
    count = int(case.settings.get("steps", 300))
    torch.manual_seed(seed)
    plan = gradients.plan(profile, spec, fusion=GROUPS, feedback=feedback, seed=seed, warm_up_steps=count // 10)
    model = gradients.wrap(task.build(), plan, door)
    momentum = 0.0 if algorithm(spec).has_momentum else MOMENTUM_OF  # dgc has its own momentum
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=momentum)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1 - number / count)
    losses = []
    for number in range(count):
        optimizer.zero_grad()
        loss = task.loss(model, task.batch(tasks.batch_size(case.settings), door.rank, number, seed))
        loss.backward()
        optimizer.step()
        decay.step()
        losses.append(float(loss.detach()))
    curve = door.gather(torch.tensor(losses), channel="harness").mean(dim=0)
    model.module.eval()
    with torch.no_grad():
        batches = [task.batch(FINAL_SIZE, door.rank, number, FINAL_SEED) for number in range(FINAL_BATCHES)]
        own_loss = torch.stack([task.loss(model.module, batch) for batch in batches]).mean()
    final = float(door.gather(own_loss, channel="harness").mean())
    return {"loss": final, "curve": curve[:: max(1, count // 20)].tolist()}


def summary(case: Case, method: str, by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Mean and extremes of the final loss over seeds. `loss_ratio` is the mean over the first method's mean."""
    losses = [line["loss"] for line in by_method[method]]
    mean = statistics.fmean(losses)
    first = statistics.fmean(line["loss"] for line in by_method[case.methods[0]])
    return {"loss": mean, "loss_low": min(losses), "loss_high": max(losses), "loss_ratio": mean / first}


def _taken_apart(method: str) -> tuple[str, bool]:
    spec, _, words = method.partition(" ")
    if words not in ("", NO_FEEDBACK):
        raise ValueError(f"method {method!r}; give a codec, with {NO_FEEDBACK} or without")
    return spec, not words
