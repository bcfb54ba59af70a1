"""Memory through torch.distributed.checkpoint at another number of ranks."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint

from tests.gradients.fsdp import work
from thinwire import launch
from thinwire.gradients import fsdp
from thinwire.links import Door

PRELOAD = work.PRELOAD


def whole(state: dict[str, Any]) -> dict[str, Any]:
    """What is owed to each parameter, as a mean over ranks; what is held of it; and the count of steps."""
    ranks = float(state["ranks"])
    tensors = {key: tensor.full_tensor() for key, tensor in state.items() if "/" in key}
    return {key: tensor / ranks if key.startswith("owed") else tensor for key, tensor in tensors.items()}


def passed_on(kind: str, source: str, target: str) -> dict[str, Any]:
    """Load, say what there is, train some steps, save."""
    with Door() as door:
        model: Any = work.sharded(kind)
        hsdp = kind == "hsdp"
        fsdp.compress(model, "topk:0.05", door, parameters=None if hsdp else "uniform:4")
        compression = fsdp.compression_of(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outcome: dict[str, Any] = {}
        if source:
            state = {"model": model.state_dict(), "thinwire": compression.state_dict()}
            checkpoint.load(state, checkpoint_id=source)
            model.load_state_dict(state["model"])
            compression.load_state_dict(state["thinwire"])
            outcome["loaded"] = whole(compression.state_dict())
        for step in range(4):
            optimizer.zero_grad()
            work.loss_of(model, door.rank, step, work.in_turn(step)).backward()
            optimizer.step()
        if source:
            # What comes in a step and what is owed after it, beside the true mean and what was owed before it.
            before = whole(compression.state_dict())
            weights = {name: parameter.full_tensor() for name, parameter in model.named_parameters()}
            outcome["steps"] = int(compression.state_dict()["steps"])
            outcome["finite"] = all(bool(tensor.isfinite().all()) for tensor in (*before.values(), *weights.values()))
        state = {"model": model.state_dict(), "thinwire": compression.state_dict()}
        checkpoint.save(state, checkpoint_id=target)
        outcome["saved"] = whole(compression.state_dict())
        return outcome


def test_what_is_owed_outlives_a_change_of_ranks(tmp_path: Path) -> None:
    folders = ["", *(str(tmp_path / name) for name in "abc")]
    before: dict[str, Any] | None = None
    for (source, target), (kind, workers) in zip(
        pairwise(folders), (("flat", 4), ("flat", 2), ("hsdp", 4)), strict=True
    ):
        outcome = launch.run(passed_on, kind, source, target, workers=workers)[0]
        if before is not None:
            for key, tensor in outcome["loaded"].items():
                torch.testing.assert_close(tensor, before[key], rtol=1e-5, atol=1e-7, msg=key)
            assert outcome["finite"]
            assert outcome["steps"] > 4
        before = outcome["saved"]
        assert any(float(tensor.abs().max()) > 0 for key, tensor in before.items() if key.startswith("owed"))
