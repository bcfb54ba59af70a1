"""The optimizer of a job, and the learning rate of each epoch.

Adam's heavy-ball momentum suffers from gradients that are partly an epoch old. Along a direction of curvature c its
steps stay bounded up to c = 2 (1 + beta) / (1 - beta) / lr with fresh gradients, 38 / lr at beta 0.9, but only up to
about 1 / lr with stale ones. QHAdam tolerates ten times as much (decision 15; `tests/training/test_optimizers.py`).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from thinwire.training.job import Job
from thinwire.training.qhadam import QHAdam


def build(job: Job[Any], parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """QHAdam where the job asks for it or its gradients may be stale; else Adam."""
    if job.optimizer_name == "qhadam":
        return QHAdam(parameters, lr=job.lr)
    return torch.optim.Adam(parameters, lr=job.lr)


def rate(job: Job[Any], epoch: int) -> float:
    """The learning rate of an epoch: constant, or half a cosine that would reach 0 after the last epoch."""
    if job.decay == "cosine":
        return job.lr * (1 + math.cos(math.pi * epoch / job.epochs)) / 2
    return job.lr


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
