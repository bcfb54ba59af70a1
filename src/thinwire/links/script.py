"""The steps of a rank in an epoch, made from an event log: compute for some seconds, post a transfer, wait for one.

Waits have no length of their own: a replay finds it.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.links.event_log import Entry, EventLog, Moment

COMPUTE, POST, WAIT = "compute", "post", "wait"
Step = tuple[str, float, str]  # (COMPUTE, seconds, ""), or (POST or WAIT, 0, name of an operation)


@dataclass(frozen=True)
class Operation:
    """A transfer that this rank takes part in: its kind, and the bytes that the rank sends to each peer."""

    kind: str
    bytes_to: dict[int, int]


@dataclass(frozen=True)
class Script:
    """One rank's epochs: the steps of each, and the operations by name. Names are the same on all ranks."""

    epochs: list[list[Step]]
    operations: dict[str, Operation]
    beside_s: float  # seconds for each byte sent that threads other than the main one compute for transfers

    def to_json(self) -> dict[str, Any]:
        operations = {name: [operation.kind, operation.bytes_to] for name, operation in self.operations.items()}
        return {"epochs": self.epochs, "operations": operations, "beside_s": self.beside_s}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Script":
        operations = {
            name: Operation(kind, {int(peer): size for peer, size in sizes.items()})
            for name, (kind, sizes) in content["operations"].items()
        }
        epochs = [[(kind, seconds, name) for kind, seconds, name in epoch] for epoch in content["epochs"]]
        return Script(epochs, operations, content["beside_s"])


def script(event_log: EventLog, ends: Sequence[Moment], *, by_wall: bool, beside_s: float) -> Script:
    """`ends` are the epochs' ends on the event log's own thread; only what that thread did becomes steps.

    A transfer that another thread posted, when one before it was over, counts as posted when this thread waits for it.

    Time between steps is the thread's CPU time, since the thread may have shared its core. With `by_wall` it is wall
    time: for computation on several threads, which the thread's own clock does not see.
    """
    thread = event_log.begun.thread
    operations: dict[str, Operation] = {}
    counts: Counter[str] = Counter()
    marks: list[tuple[float, str, str, Moment, Moment]] = []
    for entry in event_log.entries:
        name = _name(entry, counts)
        operations[name] = Operation(entry.kind, entry.bytes_to)
        waits = [(begun.at_s, WAIT, name, begun, end) for begun, end in entry.waits if begun.thread == thread]
        if entry.posted.thread == thread:
            marks.append((entry.posted.at_s, POST, name, entry.posted, entry.posted))
        elif waits:
            at_s, _, _, begun, _ = min(waits, key=lambda mark: mark[0])
            marks.append((at_s, POST, name, begun, begun))
        marks += waits
    marks.sort(key=lambda mark: mark[0])
    epochs: list[list[Step]] = []
    last, upcoming = event_log.begun, iter(marks)
    mark = next(upcoming, None)
    for end in ends:
        steps: list[Step] = []
        while mark is not None and mark[0] <= end.at_s:
            _, kind, name, begun, ended = mark
            steps += [(COMPUTE, _between(last, begun, by_wall), ""), (kind, 0.0, name)]
            last, mark = ended, next(upcoming, None)
        steps.append((COMPUTE, _between(last, end, by_wall), ""))
        epochs.append(steps)
        last = end
    return Script(epochs, operations, beside_s)


def steadied(script: Script) -> Script:
    """Make epochs with the same steps compute equally long: each stretch lasts the median of those in its place.

    Otherwise an epoch that was disturbed would count as what the method needs.
    """
    by_form: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number, steps in enumerate(script.epochs):
        form = tuple((kind, name.rpartition("/")[0]) for kind, _, name in steps)
        by_form.setdefault(form, []).append(number)
    epochs = [list(steps) for steps in script.epochs]
    for alike in by_form.values():
        for place in range(len(epochs[alike[0]])):
            usual = statistics.median(script.epochs[number][place][1] for number in alike)
            for number in alike:
                kind, _, name = epochs[number][place]
                epochs[number][place] = (kind, usual, name)
    return Script(epochs, script.operations, script.beside_s)


def _name(entry: Entry, counts: Counter[str]) -> str:
    """The channel and the operation's number on it, the same on all ranks: they enter a channel in the same order."""
    counts[entry.channel] += 1
    return f"{entry.channel}/{counts[entry.channel]}"


def _between(first: Moment, last: Moment, by_wall: bool) -> float:
    return max(0.0, last.at_s - first.at_s if by_wall else last.computed_s - first.computed_s)
