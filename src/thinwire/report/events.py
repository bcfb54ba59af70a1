"""events.jsonl as epochs. A last line that is cut off is the mark of a run that was killed, not an error."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.report import given
from thinwire.report.records import Epoch, RankTimes, Span, Traffic

# What is foretold of an epoch, and where the same thing stands once measured.
FORETOLD = {"predicted_halo_bytes": "halo_bytes", "predicted_bytes": "bytes", "predicted_rows": "remote_rows"}


@dataclass(frozen=True)
class Events:
    epochs: tuple[Epoch, ...]
    cut_off: bool  # the last line
    unread: int  # other lines that are no epoch


def read_events(path: Path) -> Events:
    """Whatever can be read; a line for an epoch that was run again counts, the older one does not."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    found: dict[int, Epoch] = {}
    unread = 0
    for line in lines[:-1]:
        epoch = _epoch(line)
        if epoch is not None:
            found[epoch.number] = epoch
        elif line.strip():
            unread += 1
    last = _epoch(lines[-1])  # whole, where just its end of line is missing
    if last is not None:
        found[last.number] = last
    cut_off = last is None and bool(lines[-1].strip())
    return Events(tuple(found[number] for number in sorted(found)), cut_off, unread)


def _epoch(line: bytes) -> Epoch | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    number = given.count(given.table(row).get("epoch"))
    return None if number is None else _made(number, row)


def _made(number: int, row: Mapping[str, Any]) -> Epoch:
    foretold = {}
    for predicted, measured in FORETOLD.items():
        both = given.number(row.get(predicted)), given.number(row.get(measured))
        if both[0] is not None and both[1] is not None:
            foretold[measured] = (both[0], both[1])
    stale = row.get("stale")
    spans = row.get("spans")
    return Epoch(
        number=number,
        loss=given.number(row.get("loss")),
        seconds=given.number(row.get("seconds")),
        exposed_s=given.number(row.get("exposed_s")),
        bytes=given.number(row.get("bytes")),
        float32_bytes=given.number(row.get("float32_bytes")),
        val_score=given.number(row.get("val_score")),
        test_score=given.number(row.get("test_score")),
        stale=stale if isinstance(stale, bool) else None,
        assign_s=given.number(row.get("assign_s")),
        predicted_s=given.number(row.get("predicted_s")),
        foretold=foretold,
        channels={
            name: Traffic(size, given.number(each.get("float32_bytes")))
            for name, each in given.table(row.get("channels")).items()
            if isinstance(each, dict) and (size := given.number(each.get("bytes"))) is not None
        },
        ranks=tuple(_rank(each) for each in given.rows(row.get("ranks"))),
        spans=tuple(_spans(each) for each in spans) if isinstance(spans, list) else (),
    )


def _rank(row: Mapping[str, Any]) -> RankTimes:
    names = ("seconds", "compute_s", "codec_s", "exposed_s", "hidden_s")
    times = {name: given.amount(row.get(name)) for name in names}
    return RankTimes(**times, bytes_to=given.by_number(row.get("bytes_to")))


def _spans(given_spans: Any) -> tuple[Span, ...]:
    found = []
    for each in given_spans if isinstance(given_spans, list) else ():
        if not isinstance(each, list) or len(each) < 4:
            continue
        start_s, end_s = given.number(each[2]), given.number(each[3])
        if start_s is None or end_s is None:  # under way when the epoch was over
            continue
        size = given.amount(each[4]) if len(each) > 4 else 0.0
        found.append(Span(given.text(each[0]), given.text(each[1]), start_s, max(start_s, end_s), size))
    return tuple(found)
