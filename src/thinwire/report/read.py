"""Folders of runs as values: plan.json, plan.N.json, events.jsonl, and what says how a run ended. Never unpickles."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire.report import json_values
from thinwire.report.events import Events, read_events
from thinwire.report.records import Assignment, Link, Message, PredictedRate, PredictedRow, Prediction, Run, State

PLAN, EVENTS, RESULT, FAILED = "plan.json", "events.jsonl", "result.json", "failed.json"
PREDICTIONS = "predictions.npz"


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """In the given order, each with a label of its own."""
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
    facts = _json(folder / PLAN)
    events = read_events(folder / EVENTS)
    asked = json_values.count(facts.get("epochs"))
    return Run(
        label=label,
        folder=folder,
        facts=facts,
        state=_state(folder, events, asked),
        epochs=events.epochs,
        asked=asked,
        assignments=_assignments(folder),
        links=_links(facts.get("links")),
        prediction=_prediction(json_values.table(facts.get("prediction"))),
    )


def _labels(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as many of those above as tell them apart."""
    parts = [folder.resolve().parts[1:] for folder in folders]
    depth = 1
    while len({each[-depth:] for each in parts}) < len(parts):
        depth += 1
    return ["/".join(each[-depth:]) or "run" for each in parts]


def _json(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not sound JSON ({error}); put back the file that `thinwire train` wrote") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds no object; put back the file that `thinwire train` wrote")
    return content


def _state(folder: Path, events: Events, asked: int | None) -> State:
    done = events.epochs[-1].number + 1 if events.epochs else 0
    damage = f"; {events.unread} lines of {EVENTS} are no epochs and were left out" if events.unread else ""
    # A result of fewer epochs than asked for is that of an earlier run, which this one went on from.
    result = _json(folder / RESULT) if (folder / RESULT).exists() else None
    ended = result is not None and (asked is None or (json_values.count(result.get("epochs")) or asked) >= asked)
    # Runs of before there was a result.json left this as their last file, and did not note what was asked for.
    ended = ended or (asked is None and result is None and (folder / PREDICTIONS).exists())
    if ended:
        return State("complete", f"complete: {done} epochs{damage}")
    of = "" if asked is None else f" of {asked}"
    where = f"stopped after epoch {done}{of}" if done else f"stopped before the first epoch{of} was over"
    cut = "; the last line was cut off" if events.cut_off else ""
    if (folder / FAILED).exists():
        return State("failed", f"{where}{cut}{damage}", error=str(_json(folder / FAILED).get("error", "")))
    return State("unfinished", f"{where}, or is still running{cut}{damage}; --resume goes on with it")


def _assignments(folder: Path) -> tuple[Assignment, ...]:
    numbers = [path.name.split(".")[1] for path in folder.glob("plan.*.json")]
    found = []
    for number in sorted(int(each) for each in numbers if each.isascii() and each.isdigit()):
        content = _json(folder / f"plan.{number}.json")
        messages = [
            Message(json_values.text(row.get("channel")), json_values.by_number(row.get("rows_at_bits")))
            for row in json_values.rows(content.get("messages"))
        ]
        found.append(Assignment(json_values.count(content.get("from_epoch")) or 0, tuple(messages)))
    return tuple(found)


def _links(value: Any) -> tuple[Link, ...]:
    found = []
    for row in json_values.rows(value):
        src, dst, speed = (
            json_values.count(row.get("src")),
            json_values.count(row.get("dst")),
            json_values.number(row.get("bytes_per_s")),
        )
        if src is not None and dst is not None and speed:
            found.append(Link(src, dst, speed, json_values.number(row.get("latency_s"))))
    return tuple(found)


def _prediction(content: Mapping[str, Any]) -> Prediction | None:
    rows = [
        PredictedRow(
            json_values.text(row.get("method")),
            epoch_s,
            json_values.number(row.get("bytes_per_epoch")),
            json_values.number(row.get("memory_bytes")),
        )
        for row in json_values.rows(content.get("rows"))
        if (epoch_s := json_values.number(row.get("epoch_s"))) is not None
    ]
    rates = []
    for row in json_values.rows(content.get("rates")):
        speed = json_values.amount(row.get("bits_per_s"))
        by_method = {name: json_values.amount(each) for name, each in json_values.table(row.get("epoch_s")).items()}
        # The axes that these are drawn on are logarithmic.
        if speed > 0 and (above := {name: seconds for name, seconds in by_method.items() if seconds > 0}):
            rates.append(PredictedRate(speed, above))
    if not rows and not rates:
        return None
    return Prediction(tuple(rows), json_values.text(content.get("recommended")), tuple(rates))
