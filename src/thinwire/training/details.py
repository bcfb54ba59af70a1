"""Where an epoch's time and bytes went, rank by rank: what a report draws. Told now and then, as it costs a message."""

from collections.abc import Mapping
from typing import Any

from thinwire.links import Door
from thinwire.links.books import ChannelBook
from thinwire.links.diary import Diary
from thinwire.links.telling import tell

CHANNEL = "details"
# Epochs whose every transfer and wait is told, for a trace: early ones, when all is warm.
TRACED = (2, 3)


def told(door: Door, seconds: float, books: Mapping[str, ChannelBook], diary: Diary | None) -> dict[str, Any]:
    """For the epoch's event; the same on every rank."""
    every = tell(door, _own(seconds, books, diary), channel=CHANNEL)
    channels: dict[str, dict[str, int]] = {}
    for rank in every:
        for name, sizes in rank.pop("channels").items():
            total = channels.setdefault(name, dict.fromkeys(sizes, 0))
            for kind, size in sizes.items():
                total[kind] += size
    spans = [rank.pop("spans") for rank in every]
    found: dict[str, Any] = {"channels": channels, "ranks": every}
    return found | ({"spans": spans} if diary is not None else {})


def _own(seconds: float, books: Mapping[str, ChannelBook], diary: Diary | None) -> dict[str, Any]:
    exposed_s, codec_s, flight_s = (
        sum(getattr(book, name) for book in books.values()) for name in ("exposed_s", "codec_s", "in_flight_s")
    )
    bytes_to: dict[int, int] = {}
    for book in books.values():
        for peer, size in book.bytes_to.items():
            bytes_to[peer] = bytes_to.get(peer, 0) + size
    return {
        "seconds": seconds,
        "compute_s": max(0.0, seconds - exposed_s - codec_s),
        "codec_s": codec_s,
        "exposed_s": exposed_s,
        "hidden_s": max(0.0, flight_s - exposed_s),
        "bytes_to": bytes_to,
        "channels": {
            name: {"bytes": book.bytes_sent, "float32_bytes": book.float32_bytes} for name, book in books.items()
        },
        "spans": [] if diary is None else _spans(diary),
    }


def _spans(diary: Diary) -> list[tuple[str, str, float, float, int]]:
    """Kind, channel, from, to (seconds since the epoch began) and bytes."""
    zero, found = diary.begun.at_s, []
    for entry in diary.entries:
        size = sum(entry.bytes_to.values())
        if entry.ended_s is not None:
            found.append(("transfer", entry.channel, entry.posted.at_s - zero, entry.ended_s - zero, size))
        for begun, ended in entry.waits:
            found.append(("wait", entry.channel, begun.at_s - zero, ended.at_s - zero, size))
    found += [("codec", channel, start - zero, end - zero, 0) for channel, start, end in diary.coded]
    return [(kind, name, round(start, 7), round(end, 7), size) for kind, name, start, end, size in found]
