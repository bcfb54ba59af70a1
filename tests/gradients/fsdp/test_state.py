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
    found = {key: each.full_tensor() for key, each in state.items() if "/" in key}
    return {key: each / ranks if key.startswith("owed") else each for key, each in found.items()}


def passed_on(kind: str, source: str, target: str) -> dict[str, Any]:
    """Load, say what there is, train some steps, save."""
    with Door() as door:
        model: Any = work.sharded(kind)
        hsdp = kind == "hsdp"
        fsdp.compress(model, "topk:0.05", door, parameters=None if hsdp else "uniform:4")
        compression = fsdp.compression_of(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found: dict[str, Any] = {}
        if source:
            state = {"model": model.state_dict(), "thinwire": compression.state_dict()}
            checkpoint.load(state, checkpoint_id=source)
            model.load_state_dict(state["model"])
            compression.load_state_dict(state["thinwire"])
            found["loaded"] = whole(compression.state_dict())
        for step in range(4):
            optimizer.zero_grad()
            work.loss_of(model, door.rank, step, work.in_turn(step)).backward()
            optimizer.step()
        if source:
            # What comes in a step and what is owed after it, beside the true mean and what was owed before it.
            before = whole(compression.state_dict())
            weights = {name: each.full_tensor() for name, each in model.named_parameters()}
            found["steps"] = int(compression.state_dict()["steps"])
            found["finite"] = all(bool(each.isfinite().all()) for each in (*before.values(), *weights.values()))
        state = {"model": model.state_dict(), "thinwire": compression.state_dict()}
        checkpoint.save(state, checkpoint_id=target)
        found["saved"] = whole(compression.state_dict())
        return found


def test_what_is_owed_outlives_a_change_of_ranks(tmp_path: Path) -> None:
    folders = ["", *(str(tmp_path / name) for name in "abc")]
    before: dict[str, Any] | None = None
    for (source, target), (kind, workers) in zip(
        pairwise(folders), (("flat", 4), ("flat", 2), ("hsdp", 4)), strict=True
    ):
        found = launch.run(passed_on, kind, source, target, workers=workers)[0]
        if before is not None:
            for key, each in found["loaded"].items():
                torch.testing.assert_close(each, before[key], rtol=1e-5, atol=1e-7, msg=key)
            assert found["finite"]
            assert found["steps"] > 4
        before = found["saved"]
        assert any(float(each.abs().max()) > 0 for key, each in before.items() if key.startswith("owed"))
