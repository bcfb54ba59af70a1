"""`thinwire plan gradients` on every rank: profile a network's gradients, plan, run a few steps with the plan."""

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from thinwire import gradients
from thinwire.bench.networks import CONTEXT, GPT, ResNet
from thinwire.bench.tasks import Task
from thinwire.gradients.algorithms import AUTO
from thinwire.links import Door

STEPS = 8
BATCH = 32
LETTERS = 96


def _images(size: int, *_: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(size, 1, 8, 8), torch.randint(10, (size,))


def _texts(size: int, *_: int) -> tuple[torch.Tensor, torch.Tensor]:
    windows = torch.randint(LETTERS, (size, CONTEXT + 1))
    return windows[:, :-1], windows[:, 1:]


# The networks that cases of `thinwire bench` train, on random data: values don't change times, and no files are needed.
NETWORKS = {"resnet": Task(ResNet, _images, lr=0.05), "gpt": Task(lambda: GPT(LETTERS, 4, 192), _texts, lr=0.1)}


def load(network: str) -> tuple[nn.Module, Any, Callable[[nn.Module, Any], torch.Tensor]]:
    """One of NETWORKS, or the result of the user's function, named as `package.module:function`."""
    if network in NETWORKS:
        task = NETWORKS[network]
        return task.build(), task.batch(BATCH, 0, 0, 0), task.loss
    module, _, name = network.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # so that modules in the current folder are found
    try:
        loaded = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"network {network!r}: {error}; give {', '.join(NETWORKS)}, or package.module:function for a function of "
            "your own that returns (model, batch, loss_fn)"
        ) from None
    if not isinstance(loaded, tuple) or len(loaded) != 3:
        raise ValueError(f"network {network!r} returned {type(loaded).__name__}; return (model, batch, loss_fn)")
    return loaded


def rank(network: str, codec: str, seed: int, limit_s: float) -> dict[str, Any]:
    """The profile, the plan, the measured time of its steps, and the timeline of the last step."""
    with Door(limit_s=limit_s) as door:
        with door.loading():
            torch.manual_seed(seed)
            model, batch, loss_fn = load(network)
        codecs = AUTO if codec == "auto" else codec.split(",")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        profile = gradients.profile(model, batch, loss_fn, door, codecs=codecs, optimizer=optimizer)
        plan = gradients.plan(profile, codec, seed=seed)
        wrapped = gradients.wrap(model, plan, door)
        step_times = []
        for _ in range(STEPS):
            door.barrier(channel="profile")
            start = time.perf_counter()
            optimizer.zero_grad()
            loss_fn(wrapped, batch).backward()
            optimizer.step()
            step_times.append(time.perf_counter() - start)
        times = gradients.hook_of(wrapped).times
    return {
        "profile": profile.to_json(),
        "plan": plan,
        "measured_s": statistics.median(step_times[2:]),
        "times": [asdict(group) for group in times],
    }
