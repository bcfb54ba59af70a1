"""Where an epoch's time and bytes went on each rank, for reports. Gathered in a few epochs only: it costs messages."""

from collections.abc import Mapping
from typing import Any

from thinwire.links import Door
from thinwire.links.books import ChannelBook
from thinwire.links.event_log import EventLog

CHANNEL = "details"
# Epochs of which every transfer and wait is recorded for a trace: early ones, but after the warm-up. The log starts one
# epoch before, since stale epochs wait for transfers that the epoch before has posted.
TRACED = (2, 3)


def gathered(
    door: Door, begun_s: float, seconds: float, books: Mapping[str, ChannelBook], event_log: EventLog | None
) -> dict[str, Any]:
    """Details for the event of the epoch that began at `begun_s`, the same on every rank.

    `books` are that epoch's.
    """
    row = _row(seconds, books, door.books.busy_s)
    row["spans"] = [] if event_log is None else _spans(event_log, begun_s, begun_s + seconds)
    rows = door.gather_json(row, channel=CHANNEL)
    channels: dict[str, dict[str, int]] = {}
    for rank_row in rows:
        for name, sizes in rank_row.pop("channels").items():
            total = channels.setdefault(name, dict.fromkeys(sizes, 0))
            for kind, size in sizes.items():
                total[kind] += size
    spans = [rank_row.pop("spans") for rank_row in rows]
    details: dict[str, Any] = {"channels": channels, "ranks": rows}
    return details | ({"spans": spans} if event_log is not None else {})


def _row(seconds: float, books: Mapping[str, ChannelBook], busy_s: float) -> dict[str, Any]:
    exposed_s, codec_s = (sum(getattr(book, name) for book in books.values()) for name in ("exposed_s", "codec_s"))
    bytes_to: dict[int, int] = {}
    for book in books.values():
        for peer, size in book.bytes_to.items():
            bytes_to[peer] = bytes_to.get(peer, 0) + size
    return {
        "seconds": seconds,
        "compute_s": max(0.0, seconds - exposed_s - codec_s),
        "codec_s": codec_s,
        "exposed_s": exposed_s,
        # Time with transfers under way while this rank was not waiting.
        "hidden_s": max(0.0, min(busy_s, seconds) - exposed_s),
        "bytes_to": bytes_to,
        "channels": {
            name: {"bytes": book.bytes_sent, "float32_bytes": book.float32_bytes} for name, book in books.items()
        },
    }


def _spans(event_log: EventLog, begun_s: float, ended_s: float) -> list[tuple[str, str, float, float, int]]:
    """(kind, channel, start, end, bytes) of each span, in seconds since the epoch began, cut at the epoch's ends."""
    spans: list[tuple[str, str, float, float, int]] = []
    for entry in event_log.entries:
        size = sum(entry.bytes_to.values())
        spans.append(("transfer", entry.channel, entry.posted.at_s, entry.ended_s or ended_s, size))
        spans += [("wait", entry.channel, begun.at_s, ended.at_s, size) for begun, ended in entry.waits]
    spans += [("codec", channel, start, end, 0) for channel, start, end in event_log.coded]
    return [
        (kind, name, round(max(start, begun_s) - begun_s, 7), round(min(end, ended_s) - begun_s, 7), size)
        for kind, name, start, end, size in spans
        if start < ended_s and end > begun_s
    ]
