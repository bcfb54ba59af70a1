"""The all-gather of parameters: sent once a change, close, and no closer to drifting after many steps."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.gradients.fsdp import work
from thinwire import launch
from thinwire.gradients import fsdp
from thinwire.launch import RankFailed
from thinwire.links import Door

PRELOAD = work.PRELOAD

UNITS = ("one", "two", "first", "root")


def parameter_bytes(door: Door) -> dict[str, int]:
    sent = work.books_of(door)
    return {name: sent.get(f"parameters.fsdp.{name}", 0) for name in UNITS}


def trained(model: Any, rank: int, steps: int, *, lr: float = 1e-2, first: int = 0) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(first, first + steps):
        optimizer.zero_grad()
        work.loss_of(model, rank, step).backward()
        optimizer.step()


def distance(model: Any) -> float:
    """Of the weights that this rank computes with to the exact ones, the largest."""
    model(work.batch(0, 0))  # gathers
    model.reshard()
    exact = {name: parameter.full_tensor() for name, parameter in model.named_parameters()}
    for unit in (model, model.one, model.two, model.first):
        unit.unshard()
    used = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for unit in (model, model.one, model.two, model.first):
        unit.reshard()
    return work.most([(used[name], exact[name]) for name in exact])


def counted() -> dict[str, dict[str, int]]:
    with Door() as door:
        model = fsdp.compress(work.sharded(reshard_after_forward=True), "none", door, parameters="uniform:8")
        sent = {}
        trained(model, door.rank, 1)
        sent["first step"] = parameter_bytes(door)
        trained(model, door.rank, 1)
        sent["a step"] = parameter_bytes(door)
        model.eval()
        with torch.inference_mode():
            model(work.batch(0, 0))
        sent["evaluated after a step"] = parameter_bytes(door)
        with torch.no_grad():
            model(work.batch(0, 1))
        model.train()
        model.set_requires_gradient_sync(False)  # type: ignore[operator]
        work.loss_of(model, door.rank, 0).backward()
        model.set_requires_gradient_sync(True)  # type: ignore[operator]
        work.loss_of(model, door.rank, 1).backward()
        sent["until the next step"] = parameter_bytes(door)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        work.loss_of(model, door.rank, 1, "l2")
        sent["without unit one"] = parameter_bytes(door)
        return sent


def test_weights_are_sent_once_a_change() -> None:
    for sent in launch.run(counted, workers=2):
        assert sent["evaluated after a step"] == sent["a step"]
        assert not any(sent["until the next step"].values())
        assert sent["without unit one"]["one"] == 0
        assert sent["without unit one"]["two"] == sent["a step"]["two"]
        # Weights of 800 values a shard in about a byte each; biases of a few values as they are.
        for name in ("one", "two"):
            assert sent["first step"][name] == 4 * (800 + 20)
            assert sent["a step"][name] < 4 * 800 / 3.5 + 4 * 20 + 9


def close(bits: int) -> dict[str, float]:
    distances = {}
    with Door() as door:
        model = fsdp.compress(work.sharded(), "none", door, parameters=f"uniform:{bits}")
        distances["at first"] = distance(model)
        trained(model, door.rank, 5)
        distances["after 5"] = distance(model)
        trained(model, door.rank, 60, first=5)
        distances["after 65"] = distance(model)
        for _ in range(8):  # nothing moves any more, but every gather brings what is held nearer
            with torch.no_grad():
                model.reshard()  # type: ignore[operator]
                for parameter in model.parameters():
                    parameter.mul_(1.0)
                model(work.batch(0, 0))
        distances["at rest"] = distance(model)
        other = work.sharded(seed=1).state_dict()
        model.load_state_dict(other)
        distances["loaded"] = distance(model)
    return distances


@pytest.mark.parametrize("bits", [8, 4])
def test_what_others_hold_stays_close_to_the_exact_weights(bits: int) -> None:
    for distances in launch.run(close, bits, workers=2):
        assert distances["at first"] == distances["loaded"] == 0.0
        assert 0 < distances["after 5"] < 0.02
        assert distances["after 65"] < 2 * distances["after 5"] + 1e-3
        assert distances["at rest"] < 1e-6


def beside_plain() -> dict[str, tuple[float, float]]:
    """Losses after some steps, plain and with parameters in 8 bits, by setting."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    losses_by_setting = {}
    for name, options in (
        ("resharded", {"reshard_after_forward": True}),
        ("kept", {"reshard_after_forward": False}),
        ("bfloat16", {"mp_policy": half}),
        ("checkpointed", {}),
    ):
        losses = []
        for bits in (None, "uniform:8"):
            model = work.sharded(**options)
            if bits is not None:
                fsdp.compress(model, "none", parameters=bits)
            if name == "checkpointed":
                model.one = checkpoint_wrapper(model.one)  # type: ignore[assignment]
            trained(model, dist.get_rank(), 12)
            loss = work.loss_of(model, dist.get_rank(), 99)
            model.reshard()  # type: ignore[operator]
            assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
            losses.append(float(loss.detach()))
        losses_by_setting[name] = (losses[0], losses[1])
    return losses_by_setting


def test_training_goes_as_with_plain_fsdp() -> None:
    for losses_by_setting in launch.run(beside_plain, workers=2):
        for name, (plain, ours) in losses_by_setting.items():
            assert ours == pytest.approx(plain, rel=0.03), name


def alone() -> None:
    with Door() as door:
        model: Any = fsdp.compress(work.sharded(), "none", door, parameters="uniform:8")
        with torch.no_grad():
            model(work.batch(0, 0))
            for turn in range(3):
                if door.rank == 0 or turn == 2:
                    model.one.weight.mul_(2.0)
                if turn != 1:
                    model.one.unshard()
                    model.one.reshard()


def test_weights_that_one_rank_changes_alone_are_an_error() -> None:
    with pytest.raises(RankFailed, match=r"changed parameters of 'one' before gather .*change them on all ranks"):
        launch.run(alone, workers=2)
