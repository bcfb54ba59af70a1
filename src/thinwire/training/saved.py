"""Choosing the checkpoint to resume from, the same on all ranks; and an optimizer's state as tensors."""

from typing import Any

import torch
from torch import Tensor

from thinwire.links import Door
from thinwire.training import checkpoint
from thinwire.training.checkpoint import Checkpoint, CheckpointError, Offer, Point, RankFiles
from thinwire.training.job import Job


def resumed(job: Job[Any], door: Door, facts: dict[str, Any]) -> Checkpoint | None:
    """The checkpoint to resume from: the last one that all ranks have; None if the run was killed before the first.

    If a run with another number of ranks has a later one, all ranks take its rank 0's.
    """
    rank_files = RankFiles(job.checkpoints, door.rank, door.world_size)
    rank_files.sweep()
    offers = checkpoint.common(_gathered(door, [Offer(point, door.world_size) for point in rank_files.points()]))
    for size in checkpoint.runs(job.checkpoints):
        if size != door.world_size:  # steps within an epoch differ there, so only epochs' ends count
            points = RankFiles(job.checkpoints, 0, size).points()
            offers += [Offer(point, size) for point in points if not point.steps]
    chosen = checkpoint.choose(offers, Point.parse(job.resume_epoch) if job.resume_epoch else None)
    chosen_by_all = _gathered(door, [chosen] if chosen else [])
    if any(choice != chosen_by_all[0] for choice in chosen_by_all):
        raise CheckpointError(
            "ranks see different checkpoints of a run with another number of ranks; copy rank 0's to every machine"
        )
    if chosen is None:
        return None
    same_size = chosen.world_size == door.world_size
    files = rank_files if same_size else RankFiles(job.checkpoints, 0, chosen.world_size)
    state = checkpoint.read(files, chosen.point)
    expect_same_run(state.facts, facts)
    return state


def _gathered(door: Door, offers: list[Offer]) -> list[list[Offer]]:
    """The offers of all ranks, by rank."""
    rows = [(*offer.point, offer.world_size) for offer in offers]
    rows_by_rank = door.gather_json(rows, channel="checkpoints")
    return [[Offer(Point(epochs, steps), size) for epochs, steps, size in rank_rows] for rank_rows in rows_by_rank]


def expect_same_run(then: dict[str, Any], now: dict[str, Any]) -> None:
    # A run of an earlier version sent gradients in float32 and did not say so.
    before, after = {"gradients": "none"} | _flat(then["job"]), _flat(now["job"])
    changed = [f"{name} {before.get(name)} (now {after[name]})" for name in after if before.get(name) != after[name]]
    if changed:
        raise CheckpointError(f"the checkpoint was made with {', '.join(changed)}; give the same, or start a new run")
    if then["world_size"] == now["world_size"] and then["data"] != now["data"]:
        raise CheckpointError("the checkpoint was made on other shards; give the same data, or start a new run")


def _flat(job: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in job.items() if name != "plan"}, **job["plan"]}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by `number/name`: the parameter's number, and the name of the tensor kept for it."""
    state = optimizer.state_dict()["state"]
    return {f"{number}/{name}": value for number, kept in state.items() for name, value in kept.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
