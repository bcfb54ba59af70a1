"""Which momentum bears gradients that are partly an epoch old, and how the learning rate falls."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from thinwire import fullgraph, minibatch
from thinwire.training import optimizers
from thinwire.training.checkpoint import CheckpointError
from thinwire.training.job import Job
from thinwire.training.qhadam import QHAdam, momentum
from thinwire.training.saved import expect_same_run

STALE, FRESH = fullgraph.Sylvie(), fullgraph.Exact()
STEPS = 1_000


def job(method: Any = FRESH, **options: Any) -> Job[Any]:
    return Job(method, "data", **options)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (FRESH, "Adam"),
        (STALE, "QHAdam"),
        (fullgraph.Pipe(), "QHAdam"),
        (fullgraph.Sylvie(staleness=0), "Adam"),
        (fullgraph.AdaQP(), "Adam"),
        (minibatch.Salient(), "Adam"),
    ],
)
def test_stale_messages_get_a_momentum_of_their_own(method: Any, name: str) -> None:
    weights = [torch.nn.Parameter(torch.zeros(3))]
    assert type(optimizers.build(job(method), weights)).__name__ == name
    assert type(optimizers.build(job(method, optimizer="adam"), weights)).__name__ == "Adam"
    assert type(optimizers.build(job(method, optimizer="qhadam"), weights)).__name__ == "QHAdam"


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
    if "mean_weight" in optimizer.state[weight]:
        optimizer.state[weight]["mean_weight"].fill_(1.0)
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


def test_long_memory_bears_what_heavy_balls_do_not() -> None:
    fresh, one_hop, three_hops = [1.0], [0.64, 0.36], [0.26, 0.44, 0.25, 0.05]  # where a third of edges is cut
    assert threshold("adam", fresh) == pytest.approx(38, rel=0.05)
    assert threshold("adam", one_hop) == pytest.approx(1 / 0.36, rel=0.05)
    assert threshold("adam", three_hops) < 1.05
    assert threshold("qhadam", fresh) > 30
    assert threshold("qhadam", one_hop) > 10 * threshold("adam", one_hop)
    assert threshold("qhadam", three_hops) > 10 * threshold("adam", three_hops)


def test_gradients_that_stay_the_same_move_weights_by_the_rate() -> None:
    """Both means are corrected for their start from zero, though momentum's beta is another in each step."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = QHAdam([weight], lr=0.5)
    for step in range(1, 200):
        weight.grad = torch.tensor([3.0, -0.01])
        optimizer.step()
        torch.testing.assert_close(weight.detach(), torch.tensor([-0.5, 0.5]) * step, rtol=1e-4, atol=0)


def test_qhadam_follows_its_formula() -> None:
    gradients = [math.sin(3 * step) + 0.2 for step in range(250)]
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = QHAdam([weight], lr=0.01, betas=(0.97, 0.9), direct=0.08)
    expected = 0.0
    for step, gradient in enumerate(gradients, 1):
        betas = [momentum(past, most=0.97) for past in range(1, step + 1)]
        shares = [(1 - beta) * math.prod(betas[past + 1 :]) for past, beta in enumerate(betas)]
        mean = sum(share * past for share, past in zip(shares, gradients, strict=False)) / sum(shares)
        squares = [0.1 * 0.9 ** (step - past) * gradients[past - 1] ** 2 for past in range(1, step + 1)]
        direct = max(0.08, 1 - betas[-1])
        expected -= 0.01 * ((1 - direct) * mean + direct * gradient) / (sum(squares) / (1 - 0.9**step)) ** 0.5
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    assert weight.item() == pytest.approx(expected, rel=1e-5)


def test_memory_grows_from_adams_to_the_most() -> None:
    assert [momentum(step, most=0.98) for step in (1, 30, 60, 150, 10_000)] == pytest.approx(
        [0.9, 0.9, 0.95, 0.98, 0.98]
    )


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"direct": 1.5}, {"eps": -1.0}])
def test_what_qhadam_can_not_do(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lr and eps are 0 or more, betas below 1, direct from 0 to 1"):
        QHAdam([torch.nn.Parameter(torch.zeros(1))], **options)


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
    expect_same_run(then, {**then, "job": replace(run, optimizer="qhadam").identity()})
    for changed, message in [
        (replace(run, optimizer="adam"), r"optimizer qhadam \(now adam\)"),
        (replace(run, epochs=20), r"decay cosine over 10 epochs \(now cosine over 20 epochs\)"),
        (replace(run, decay="none"), r"decay cosine over 10 epochs \(now none\)"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            expect_same_run(then, {**then, "job": changed.identity()})


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="optimizer is 'sgd'; give one of auto, adam, qhadam"):
        job(optimizer="sgd")
    with pytest.raises(ValueError, match="decay is 'linear'; give one of none, cosine"):
        job(decay="linear")
