"""Every rank's measurements made into one row that is the same on all of them; and that all have the same plan."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import torch

from thinwire.gradients.plan import Plan
from thinwire.links import Door

CHANNEL = "profile"


def usual(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    """Column by column the median of this rank's, and the mean of all ranks'."""
    return _told(door, torch.tensor(rows, dtype=torch.float64).median(dim=0).values)


def mean(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    return _told(door, torch.tensor(rows, dtype=torch.float64).mean(dim=0))


def meet(door: Door) -> None:
    """Go on together, as in training."""
    door.told(torch.zeros(1), channel=CHANNEL)


def expect_same_plan(door: Door, plan: Plan) -> None:
    """Raise where another rank has another one: their messages would not fit, or one would fall back alone."""
    own = {name: each for name, each in asdict(plan).items() if name not in ("predicted", "alternatives", "rivals")}
    if plan.rivals and plan.predicted is not None:  # processors of several kinds may differ in the last digits
        own["judged by"] = [f"{step_s:.6g}" for step_s in (plan.predicted.step_s, *plan.rivals.values())]
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).digest()[:8]
    told = door.told(torch.frombuffer(bytearray(digest), dtype=torch.int64), channel="plan")[:, 0].tolist()
    for peer, theirs in enumerate(told):
        if theirs != told[0]:
            raise ValueError(
                f"ranks {door.ranks[0]} and {door.ranks[peer]} have different plans; make it from a profile that all "
                "ranks took together, or give all the same file"
            )


def _told(door: Door, own: torch.Tensor) -> list[float]:
    found: list[float] = door.told(own, channel=CHANNEL).mean(dim=0).tolist()
    return found
