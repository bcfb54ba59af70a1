"""Which momentum bears gradients that are partly an epoch old, and how the learning rate falls."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from thinwire import fullgraph, minibatch
from thinwire.training import optimizers
from thinwire.training.checkpoint import CheckpointError
from thinwire.training.job import Job
from thinwire.training.saved import expect_same_run

STALE, FRESH = fullgraph.Plan("sylvie"), fullgraph.Plan("exact")
STEPS = 1_000


def job(plan: Any = FRESH, **given: Any) -> Job[Any]:
    return Job(plan, "data", **given)


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (FRESH, "Adam"),
        (STALE, "NAdam"),
        (fullgraph.Plan("pipe"), "NAdam"),
        (fullgraph.Plan("sylvie", staleness=0), "Adam"),
        (fullgraph.Plan("adaqp"), "Adam"),
        (minibatch.Plan(), "Adam"),
    ],
)
def test_stale_messages_get_nesterov(plan: Any, name: str) -> None:
    weights = [torch.nn.Parameter(torch.zeros(3))]
    assert type(optimizers.build(job(plan), weights)).__name__ == name
    assert type(optimizers.build(job(plan, optimizer="adam"), weights)).__name__ == "Adam"
    assert type(optimizers.build(job(plan, optimizer="nadam"), weights)).__name__ == "NAdam"


def is_stable(name: str, curvature: float, ages: list[float]) -> bool:
    """Whether a bowl's bottom is kept to, when a share ages[k] of the gradient is of the weights k steps ago.

    The second moment stands still, as noise holds it in a run; this weight's own oscillation would shorten its steps.
    """
    weight = torch.nn.Parameter(torch.tensor([1e-6]))
    optimizer = optimizers.build(job(FRESH, optimizer=name, lr=1.0), [weight])
    past = [weight.detach().clone()] * len(ages)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.state[weight]["step"] += 1e6  # long since begun: nothing is corrected for a start from zero
    if "mu_product" in optimizer.state[weight]:
        optimizer.state[weight]["mu_product"].zero_()
    for _ in range(STEPS):
        past = [weight.detach().clone(), *past[:-1]]
        gradient = sum(share * old for share, old in zip(ages, past, strict=True))
        weight.grad = torch.as_tensor(curvature * gradient)
        optimizer.state[weight]["exp_avg_sq"].fill_(1.0)
        optimizer.step()
        if not weight.abs().item() < 1.0:
            return False
    return bool(weight.abs() < 1e-5)  # from 1e-6


def threshold(name: str, ages: list[float]) -> float:
    """The largest curvature, in units of 1 / lr, at which training is stable."""
    low, high = 0.01, 100.0
    for _ in range(11):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_stable(name, middle, ages) else (low, middle)
    return low


def test_nesterov_bears_what_heavy_balls_do_not() -> None:
    fresh, one_hop, three_hops = [1.0], [0.64, 0.36], [0.26, 0.44, 0.25, 0.05]  # where a third of edges is cut
    assert threshold("adam", fresh) == pytest.approx(38, rel=0.05)
    assert threshold("adam", one_hop) == pytest.approx(1 / 0.36, rel=0.05)
    assert threshold("adam", three_hops) < 1.05
    assert threshold("nadam", fresh) == pytest.approx(13.5, rel=0.05)
    assert threshold("nadam", one_hop) > 4 * threshold("adam", one_hop)
    assert threshold("nadam", three_hops) > 2 * threshold("adam", three_hops)


def test_rates() -> None:
    falling = job(decay="cosine", epochs=10, lr=0.1)
    rates = [optimizers.rate(falling, epoch) for epoch in range(10)]
    assert rates[0] == 0.1
    assert rates[5] == pytest.approx(0.05)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert 0 < rates[-1] < 0.003
    assert optimizers.rate(job(epochs=10, lr=0.1), 7) == 0.1
    optimizer = optimizers.build(falling, [torch.nn.Parameter(torch.zeros(3))])
    optimizers.set_rate(optimizer, rates[3])
    assert [group["lr"] for group in optimizer.param_groups] == [rates[3]]


def test_a_run_goes_on_with_its_own_optimizer_and_decay() -> None:
    run = job(STALE, decay="cosine", epochs=10)
    then = {"job": run.identity(), "world_size": 2, "data": "a"}
    expect_same_run(then, {**then, "job": replace(run, optimizer="nadam").identity()})
    for changed, told in [
        (replace(run, optimizer="adam"), r"optimizer nadam \(now adam\)"),
        (replace(run, epochs=20), r"decay cosine over 10 epochs \(now cosine over 20 epochs\)"),
        (replace(run, decay="none"), r"decay cosine over 10 epochs \(now none\)"),
    ]:
        with pytest.raises(CheckpointError, match=told):
            expect_same_run(then, {**then, "job": changed.identity()})


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="optimizer is 'sgd'; give one of auto, adam, nadam"):
        job(optimizer="sgd")
    with pytest.raises(ValueError, match="decay is 'linear'; give one of none, cosine"):
        job(decay="linear")
