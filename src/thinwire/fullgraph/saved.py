"""A run's state in and out of a checkpoint, agreed on by all ranks."""

from typing import Any

import torch
from torch import Tensor

from thinwire.fullgraph import checkpoint
from thinwire.fullgraph.checkpoint import KEPT, Checkpoint, CheckpointError, Place
from thinwire.fullgraph.job import Job
from thinwire.links import Door


def resumed(job: Job, door: Door, facts: dict[str, Any]) -> Checkpoint:
    """The state to go on from: the last one that all ranks have. At another number of ranks, rank 0's for all."""
    place = Place(job.checkpoints, door.rank, door.world_size)
    own = _everybodys(door, place.epochs())
    if not any(own):
        others = [runs for runs in checkpoint.runs(job.checkpoints) if runs != door.world_size]
        last = max(others, key=lambda size: Place(job.checkpoints, 0, size).epochs()[-1], default=door.world_size)
        place = Place(job.checkpoints, 0, last)
        own = _everybodys(door, place.epochs())
    state = checkpoint.read(place, checkpoint.choose(own, job.resume_epoch))
    expect_same_run(state.facts, facts)
    return state


def _everybodys(door: Door, own: list[int]) -> list[list[int]]:
    mine = torch.tensor([*own, *[-1] * KEPT][: KEPT + 1], dtype=torch.int64)
    told = door.all_gather(mine, [mine.nbytes] * door.world_size, channel="checkpoints").wait()
    return [[epoch for epoch in each.clone().view(torch.int64).tolist() if epoch >= 0] for each in told]


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
