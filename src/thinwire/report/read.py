"""Reads folders of runs: plan.json, plan.N.json, events.jsonl, and the files that say how a run ended. No pickle."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from thinwire.checked import Count, leniently
from thinwire.report.events import Events, read_events
from thinwire.report.records import Assignment, Facts, Run, State

PLAN, EVENTS, RESULT, FAILED = "plan.json", "events.jsonl", "result.json", "failed.json"
PREDICTIONS = "predictions.npz"

Content = TypeVar("Content", bound=Struct)


class Result(Struct, frozen=True):
    """result.json, which a run writes at its end."""

    epochs: Count | None = None


class Failure(Struct, frozen=True):
    """failed.json of a run that ended with an error."""

    error: str = ""


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, in the given order; no two have the same label."""
    for number, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:number]]:
            raise ValueError(f"{folder} is given twice; name each run once")
    return [_run(folder, label) for folder, label in zip(folders, _labels(folders), strict=True)]


def _run(folder: Path, label: str) -> Run:
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {what}; give a folder that `thinwire train --out` has written")
    if not (folder / PLAN).exists() and not (folder / EVENTS).exists():
        raise ValueError(
            f"{folder} holds no run: neither {PLAN} nor {EVENTS}; give a folder that `thinwire train --out` has written"
        )
    facts = _content(folder / PLAN, Facts) if (folder / PLAN).exists() else Facts()
    events = read_events(folder / EVENTS)
    state = _state(folder, events, facts.epochs)
    return Run(label, folder, facts, state, epochs=events.epochs, assignments=_assignments(folder))


def _labels(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parent folders as needed to tell them apart."""
    parts = [folder.resolve().parts[1:] for folder in folders]
    depth = 1
    while len({names[-depth:] for names in parts}) < len(parts):
        depth += 1
    return ["/".join(names[-depth:]) or "run" for names in parts]


def _content(path: Path, kind: type[Content]) -> Content:
    """Read a JSON file. It is written whole or not at all, so damage is an error; keys that do not fit are missing."""
    try:
        content = leniently(json.loads(path.read_bytes()), kind)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not sound JSON ({error}); put back the file that `thinwire train` wrote") from error
    if content is None:
        raise ValueError(f"{path}: holds no object; put back the file that `thinwire train` wrote")
    return content


def _state(folder: Path, events: Events, asked: int | None) -> State:
    done = events.epochs[-1].number + 1 if events.epochs else 0
    damage = f"; {events.unread} lines of {EVENTS} are no epochs and were left out" if events.unread else ""
    # A result with fewer epochs than asked for is from an earlier run that this one resumed.
    result = _content(folder / RESULT, Result) if (folder / RESULT).exists() else None
    ended = result is not None and (asked is None or (result.epochs or asked) >= asked)
    # Older runs wrote no result.json: predictions were their last file, and they did not note the epochs asked for.
    ended = ended or (asked is None and result is None and (folder / PREDICTIONS).exists())
    if ended:
        return State("complete", f"complete: {done} epochs{damage}")
    of = "" if asked is None else f" of {asked}"
    where = f"stopped after epoch {done}{of}" if done else f"stopped before the first epoch{of} was over"
    cut = "; the last line was cut off" if events.cut_off else ""
    if (folder / FAILED).exists():
        return State("failed", f"{where}{cut}{damage}", error=_content(folder / FAILED, Failure).error)
    return State("unfinished", f"{where}, or is still running{cut}{damage}; --resume goes on with it")


def _assignments(folder: Path) -> tuple[Assignment, ...]:
    numbers = [path.name.split(".")[1] for path in folder.glob("plan.*.json")]
    counts = sorted(int(number) for number in numbers if number.isascii() and number.isdigit())
    return tuple(_content(folder / f"plan.{count}.json", Assignment) for count in counts)
