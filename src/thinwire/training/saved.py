"""A run's state in and out of a checkpoint, agreed on by all ranks."""

from typing import Any

import torch
from torch import Tensor

from thinwire.links import Door
from thinwire.training import checkpoint
from thinwire.training.checkpoint import Checkpoint, CheckpointError, Offer, Point, RankFiles
from thinwire.training.job import Job


def resumed(job: Job[Any], door: Door, facts: dict[str, Any]) -> Checkpoint | None:
    """The state to go on from: the last one that all ranks have; None where a kill came before there was any.

    Of a run with another number of ranks it is rank 0's, for all, if that is the later one.
    """
    own = RankFiles(job.checkpoints, door.rank, door.world_size)
    own.sweep()
    offers = checkpoint.common(_everybodys(door, [Offer(point, door.world_size) for point in own.points()]))
    for size in checkpoint.runs(job.checkpoints):
        if size != door.world_size:  # whose steps are others
            points = RankFiles(job.checkpoints, 0, size).points()
            offers += [Offer(point, size) for point in points if not point.steps]
    chosen = checkpoint.choose(offers, Point.parse(job.resume_epoch) if job.resume_epoch else None)
    chosen_by_all = _everybodys(door, [chosen] if chosen else [])
    if any(each != chosen_by_all[0] for each in chosen_by_all):
        raise CheckpointError(
            "ranks see different checkpoints of a run with another number of ranks; copy rank 0's to every machine"
        )
    if chosen is None:
        return None
    here = chosen.world_size == door.world_size
    state = checkpoint.read(own if here else RankFiles(job.checkpoints, 0, chosen.world_size), chosen.point)
    expect_same_run(state.facts, facts)
    return state


def _everybodys(door: Door, own: list[Offer]) -> list[list[Offer]]:
    mine = [(*offer.point, offer.world_size) for offer in own]
    every = door.gather_json(mine, channel="checkpoints")
    return [[Offer(Point(epochs, steps), size) for epochs, steps, size in offers] for offers in every]


def expect_same_run(then: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = _flat(then["job"]), _flat(now["job"])
    changed = [f"{name} {before.get(name)} (now {after[name]})" for name in after if before.get(name) != after[name]]
    if changed:
        raise CheckpointError(f"the checkpoint was made with {', '.join(changed)}; give the same, or start a new run")
    if then["world_size"] == now["world_size"] and then["data"] != now["data"]:
        raise CheckpointError("the checkpoint was made on other shards; give the same data, or start a new run")


def _flat(job: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in job.items() if name != "plan"}, **job["plan"]}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """By the parameter's number and the name of what is kept of it."""
    state = optimizer.state_dict()["state"]
    return {f"{number}/{name}": value for number, own in state.items() for name, value in own.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
