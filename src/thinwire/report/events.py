"""Reads events.jsonl as epochs. A last line that is cut off means that the run was killed; it is no error."""

import json
from dataclasses import dataclass
from pathlib import Path

from thinwire.checked import leniently
from thinwire.report.records import Epoch


@dataclass(frozen=True)
class Events:
    epochs: tuple[Epoch, ...]
    cut_off: bool  # whether the last line is cut off
    unread: int  # the number of other lines that are no epoch


def read_events(path: Path) -> Events:
    """All epochs that can be read. If an epoch was run again, its last line counts."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    epochs: dict[int, Epoch] = {}
    unread = 0
    for line in lines[:-1]:
        epoch = _epoch(line)
        if epoch is not None:
            epochs[epoch.number] = epoch
        elif line.strip():
            unread += 1
    last = _epoch(lines[-1])  # an epoch, if only the newline is missing
    if last is not None:
        epochs[last.number] = last
    cut_off = last is None and bool(lines[-1].strip())
    return Events(tuple(epochs[number] for number in sorted(epochs)), cut_off, unread)


def _epoch(line: bytes) -> Epoch | None:
    try:
        return leniently(json.loads(line), Epoch)
    except (ValueError, RecursionError):
        return None
