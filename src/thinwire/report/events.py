"""events.jsonl as epochs. A last line that is cut off is the mark of a run that was killed, not an error."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.report import json_values
from thinwire.report.records import Epoch, RankTimes, Span, Traffic

# What is predicted of an epoch, and where the same thing stands once measured.
PREDICTED = {"predicted_halo_bytes": "halo_bytes", "predicted_bytes": "bytes", "predicted_rows": "remote_rows"}


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
    number = json_values.count(json_values.table(row).get("epoch"))
    return None if number is None else _made(number, row)


def _made(number: int, row: Mapping[str, Any]) -> Epoch:
    predicted = {}
    for name, measured in PREDICTED.items():
        both = json_values.number(row.get(name)), json_values.number(row.get(measured))
        if both[0] is not None and both[1] is not None:
            predicted[measured] = (both[0], both[1])
    stale = row.get("stale")
    spans = row.get("spans")
    return Epoch(
        number=number,
        loss=json_values.number(row.get("loss")),
        seconds=json_values.number(row.get("seconds")),
        exposed_s=json_values.number(row.get("exposed_s")),
        bytes=json_values.number(row.get("bytes")),
        float32_bytes=json_values.number(row.get("float32_bytes")),
        val_score=json_values.number(row.get("val_score")),
        test_score=json_values.number(row.get("test_score")),
        stale=stale if isinstance(stale, bool) else None,
        assign_s=json_values.number(row.get("assign_s")),
        predicted_s=json_values.number(row.get("predicted_s")),
        predicted=predicted,
        channels={
            name: Traffic(size, json_values.number(each.get("float32_bytes")))
            for name, each in json_values.table(row.get("channels")).items()
            if isinstance(each, dict) and (size := json_values.number(each.get("bytes"))) is not None
        },
        ranks=tuple(_rank(each) for each in json_values.rows(row.get("ranks"))),
        spans=tuple(_spans(each) for each in spans) if isinstance(spans, list) else (),
    )


def _rank(row: Mapping[str, Any]) -> RankTimes:
    names = ("seconds", "compute_s", "codec_s", "exposed_s", "hidden_s")
    times = {name: json_values.amount(row.get(name)) for name in names}
    return RankTimes(**times, bytes_to=json_values.by_number(row.get("bytes_to")))


def _spans(given_spans: Any) -> tuple[Span, ...]:
    found = []
    for each in given_spans if isinstance(given_spans, list) else ():
        if not isinstance(each, list) or len(each) < 4:
            continue
        start_s, end_s = json_values.number(each[2]), json_values.number(each[3])
        if start_s is None or end_s is None:  # under way when the epoch was over
            continue
        size = json_values.amount(each[4]) if len(each) > 4 else 0.0
        found.append(Span(json_values.text(each[0]), json_values.text(each[1]), start_s, max(start_s, end_s), size))
    return tuple(found)
