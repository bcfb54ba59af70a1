"""Where an epoch's time and bytes went, rank by rank: what a report draws. Gathered now and then: messages cost."""

from collections.abc import Mapping
from typing import Any

from thinwire.links import Door
from thinwire.links.books import ChannelBook
from thinwire.links.event_log import EventLog

CHANNEL = "details"
# Epochs whose every transfer and wait is noted, for a trace: early ones, when all is warm. The log runs from the
# one before on, since stale epochs wait for what that one has posted.
TRACED = (2, 3)


def gathered(
    door: Door, begun_s: float, seconds: float, books: Mapping[str, ChannelBook], event_log: EventLog | None
) -> dict[str, Any]:
    """For the event of the epoch that began then; the same on every rank. `books` were the last to be taken."""
    row = _row(seconds, books, door.books.busy_s)
    row["spans"] = [] if event_log is None else _spans(event_log, begun_s, begun_s + seconds)
    every = door.gather_json(row, channel=CHANNEL)
    channels: dict[str, dict[str, int]] = {}
    for rank in every:
        for name, sizes in rank.pop("channels").items():
            total = channels.setdefault(name, dict.fromkeys(sizes, 0))
            for kind, size in sizes.items():
                total[kind] += size
    spans = [rank.pop("spans") for rank in every]
    found: dict[str, Any] = {"channels": channels, "ranks": every}
    return found | ({"spans": spans} if event_log is not None else {})


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
        # While something was under way, and nobody stood still for it.
        "hidden_s": max(0.0, min(busy_s, seconds) - exposed_s),
        "bytes_to": bytes_to,
        "channels": {
            name: {"bytes": book.bytes_sent, "float32_bytes": book.float32_bytes} for name, book in books.items()
        },
    }


def _spans(event_log: EventLog, begun_s: float, ended_s: float) -> list[tuple[str, str, float, float, int]]:
    """Kind, channel, from, to (seconds since the epoch began) and bytes: of all that went on then, cut at its ends."""
    found: list[tuple[str, str, float, float, int]] = []
    for entry in event_log.entries:
        size = sum(entry.bytes_to.values())
        found.append(("transfer", entry.channel, entry.posted.at_s, entry.ended_s or ended_s, size))
        found += [("wait", entry.channel, begun.at_s, ended.at_s, size) for begun, ended in entry.waits]
    found += [("codec", channel, start, end, 0) for channel, start, end in event_log.coded]
    return [
        (kind, name, round(max(start, begun_s) - begun_s, 7), round(min(end, ended_s) - begun_s, 7), size)
        for kind, name, start, end, size in found
        if start < ended_s and end > begun_s
    ]
