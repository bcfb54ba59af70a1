"""A run's state in and out of a checkpoint, agreed on by all ranks."""

from typing import Any

import torch
from torch import Tensor

from thinwire.links import Door
from thinwire.training import checkpoint
from thinwire.training.checkpoint import KEPT, Checkpoint, CheckpointError, Place
from thinwire.training.job import Job

# Epochs of checkpoints that a rank tells the others.
MOST = KEPT + 1


def resumed(job: Job[Any], door: Door, facts: dict[str, Any]) -> Checkpoint | None:
    """The state to go on from: the last one that all ranks have; None where a kill came before there was any.

    Of a run with another number of ranks it is rank 0's, for all, if that is the later one.
    """
    own = Place(job.checkpoints, door.rank, door.world_size)
    own.sweep()
    offers = [(done, door.world_size) for done in checkpoint.common(_everybodys(door, own.epochs()))]
    for size in checkpoint.runs(job.checkpoints):
        if size != door.world_size:
            offers += [(done, size) for done in Place(job.checkpoints, 0, size).epochs()]
    chosen = checkpoint.choose(offers, job.resume_epoch)
    told = _everybodys(door, list(chosen or ()))
    if any(each != told[0] for each in told):
        raise CheckpointError(
            "ranks see different checkpoints of a run with another number of ranks; copy rank 0's to every machine"
        )
    if chosen is None:
        return None
    done, size = chosen
    state = checkpoint.read(own if size == door.world_size else Place(job.checkpoints, 0, size), done)
    expect_same_run(state.facts, facts)
    return state


def _everybodys(door: Door, own: list[int]) -> list[list[int]]:
    mine = torch.tensor([*own[-MOST:], *[-1] * MOST][:MOST], dtype=torch.int64)
    told = door.told(mine, channel="checkpoints")
    return [[epoch for epoch in each if epoch >= 0] for each in told.tolist()]


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
