"""The door's books: what left this rank, for whom, on which channel, and how long it took or was waited for."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from thinwire.links.event_log import Entry, EventLog


@dataclass
class ChannelBook:
    """One channel's entries. Bytes are payload; frames and acknowledgements are the kernel's own."""

    operations: int = 0
    bytes_to: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    messages_to: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    in_flight_s: float = 0.0  # from posting to completion, summed over operations, which may overlap
    exposed_s: float = 0.0  # while the caller stood still
    codec_s: float = 0.0  # encoding what goes out, decoding what came
    values: int = 0  # sent encoded; in float32 each would have taken 4 bytes
    replaced_bytes: int | None = None  # what float32 would have sent instead of this, where that was told

    @property
    def float32_bytes(self) -> int:
        """Bytes that would have left in float32. What was not encoded counts as it was sent."""
        if self.replaced_bytes is not None:
            return self.replaced_bytes
        return 4 * self.values or self.bytes_sent

    @property
    def bytes_sent(self) -> int:
        return sum(self.bytes_to.values())

    @property
    def messages_sent(self) -> int:
        return sum(self.messages_to.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "operations": self.operations,
            "bytes_to": dict(self.bytes_to),
            "messages_to": dict(self.messages_to),
            "in_flight_s": self.in_flight_s,
            "exposed_s": self.exposed_s,
            "codec_s": self.codec_s,
            "values": self.values,
        }


class Books:
    """All channels. Entries come from the caller's thread and from those that see a transfer end."""

    def __init__(self) -> None:
        self._channels: dict[str, ChannelBook] = {}
        self._lock = threading.Lock()
        self._under_way = 0
        self._since_s = 0.0  # when the first transfer under way was posted, or the last `take` if that was later
        self._busy_s = 0.0
        self.busy_s = 0.0  # of the time before the last `take`, how long a transfer was under way
        self.event_log: EventLog | None = None  # set where somebody wants to know what happened when

    def posted(self, channel: str, bytes_to: dict[int, int], kind: str = "") -> Entry | None:
        with self._lock:
            book = self._channels.setdefault(channel, ChannelBook())
            book.operations += 1
            if not self._under_way:
                self._since_s = time.perf_counter()
            self._under_way += 1
            for peer, size in bytes_to.items():
                if size:
                    book.bytes_to[peer] += size
                    book.messages_to[peer] += 1
        event_log = self.event_log
        return None if event_log is None else event_log.posted(channel, kind, bytes_to)

    def finished(self, channel: str, in_flight_s: float) -> None:
        with self._lock:
            self._channels.setdefault(channel, ChannelBook()).in_flight_s += in_flight_s
            self._under_way -= 1
            if not self._under_way:
                self._busy_s += time.perf_counter() - self._since_s

    def waited(self, channel: str, exposed_s: float) -> None:
        with self._lock:
            self._channels.setdefault(channel, ChannelBook()).exposed_s += exposed_s

    @contextmanager
    def coding(self, channel: str, values: int = 0) -> Iterator[None]:
        """While inside, so many values are encoded for this channel, or its messages decoded."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            with self._lock:
                book = self._channels.setdefault(channel, ChannelBook())
                book.codec_s += end - start
                book.values += values
            event_log = self.event_log
            if event_log is not None:
                event_log.coded.append((channel, start, end))

    def replaces(self, channel: str, float32_bytes: int) -> None:
        """What this channel sends stands for so many bytes in float32, which go in other messages than encoded ones."""
        with self._lock:
            book = self._channels.setdefault(channel, ChannelBook())
            book.replaced_bytes = (book.replaced_bytes or 0) + float32_bytes

    def bytes_to(self) -> dict[int, int]:
        """Bytes to each peer since the last `take`, all channels together."""
        total: defaultdict[int, int] = defaultdict(int)
        with self._lock:
            for book in self._channels.values():
                for peer, size in book.bytes_to.items():
                    total[peer] += size
        return dict(total)

    def take(self) -> dict[str, ChannelBook]:
        """The entries since the last `take`: one call an epoch gives an epoch's books."""
        with self._lock:
            taken, self._channels = self._channels, {}
            now = time.perf_counter()
            running_s = now - self._since_s if self._under_way else 0.0
            self.busy_s, self._busy_s, self._since_s = self._busy_s + running_s, 0.0, now
        return taken
