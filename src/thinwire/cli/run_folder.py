"""The folder of a run (`thinwire train --out`): checks whether a run may begin or resume in it, and reads its plan."""

import json
from pathlib import Path
from typing import Any

from thinwire import artifacts, graphs
from thinwire.training.run import EVENTS, PLAN


def prepare_out(out: Path | None, data: str, *, resume: bool, resume_epoch: str) -> None:
    """Make the folder ready; raise if a run can't begin in it, or can't go on with `resume`."""
    if out is None:
        if resume:
            raise ValueError("--resume goes on from checkpoints in --out; say which folder")
        return
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is no folder; name another")
    if resume and not (out / EVENTS).exists():
        raise ValueError(f"{out} holds no run; give the folder of one, or start without --resume")
    if resume and (plan := plan_in(out)) is not None:
        trained_on = plan.get("data")
        if trained_on != data and not graphs.is_shard_folder(Path(data)):
            raise ValueError(f"the run in {out} was trained on {trained_on}; give --data {trained_on}")
    if not resume and out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give --resume to go on with a run in it, or another folder")
    if resume_epoch and not resume:
        raise ValueError("--resume-epoch goes with --resume")
    out.mkdir(parents=True, exist_ok=True)
    artifacts.check_writable(out / PLAN)
    (out / EVENTS).touch()


def plan_in(out: Path | None) -> dict[str, Any] | None:
    """The plan.json of the run in this folder; None if this machine does not have it."""
    path = None if out is None else out / PLAN
    return dict(json.loads(path.read_text())) if path is not None and path.exists() else None
