"""Writes a run's scalars as TensorBoard event files. Only this module needs the extra `tensorboard`."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from thinwire import artifacts
from thinwire.report.read import EVENTS
from thinwire.report.records import Run

# TensorBoard groups tags by the part before the slash.
TAGS = {
    "loss": "loss",
    "score/validation": "val_score",
    "score/test": "test_score",
    "time/seconds": "seconds",
    "time/exposed_s": "exposed_s",
    "time/predicted_s": "predicted_s",
    "time/assign_s": "assign_s",
    "wire/bytes": "bytes",
    "wire/float32_bytes": "float32_bytes",
}
PREFIX = "events.out.tfevents."


def check(folder: Path, runs: Sequence[Run]) -> None:
    """Raise if TensorBoard is missing or a folder can't be written."""
    if find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs TensorBoard; run `pip install tensorboard`")
    for run in runs:
        artifacts.check_folder(folder / run.label, _is_ours)


def write_scalars(folder: Path, runs: Sequence[Run]) -> None:
    """Write a folder for each run, as TensorBoard expects. Folders of earlier reports are replaced."""
    for run in runs:
        with artifacts.new_folder(folder / run.label, _is_ours) as new:
            _write(new, run)


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX)


def _write(folder: Path, run: Run) -> None:
    # Imported here: the extra may be missing, and other commands should not wait for it.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    ends_s = list(accumulate(epoch.seconds or 0.0 for epoch in run.epochs))
    # The last epoch ended when its line was written, so TensorBoard's relative time is time of training.
    began = (run.folder / EVENTS).stat().st_mtime - ends_s[-1] if ends_s else 0.0
    writer = EventFileWriter(str(folder))
    for epoch, end_s in zip(run.epochs, ends_s, strict=True):
        values = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, name in TAGS.items()
            if (value := getattr(epoch, name)) is not None
        ]
        writer.add_event(Event(wall_time=began + end_s, step=epoch.number + 1, summary=Summary(value=values)))
    writer.close()
