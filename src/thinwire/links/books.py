"""The door's books: what left this rank, for whom, on which channel, and how long it took or was waited for."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ChannelBook:
    """One channel's entries. Bytes are payload; frames and acknowledgements are the kernel's own."""

    operations: int = 0
    bytes_to: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    messages_to: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    in_flight_s: float = 0.0  # from posting to completion, summed over operations, which may overlap
    exposed_s: float = 0.0  # the caller stood still

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
        }


class Books:
    """All channels. Entries come from the caller's thread and from those that see a transfer end."""

    def __init__(self) -> None:
        self._channels: dict[str, ChannelBook] = {}
        self._lock = threading.Lock()

    def posted(self, channel: str, bytes_to: dict[int, int]) -> None:
        with self._lock:
            book = self._channels.setdefault(channel, ChannelBook())
            book.operations += 1
            for peer, size in bytes_to.items():
                if size:
                    book.bytes_to[peer] += size
                    book.messages_to[peer] += 1

    def finished(self, channel: str, in_flight_s: float) -> None:
        with self._lock:
            self._channels.setdefault(channel, ChannelBook()).in_flight_s += in_flight_s

    def waited(self, channel: str, exposed_s: float) -> None:
        with self._lock:
            self._channels.setdefault(channel, ChannelBook()).exposed_s += exposed_s

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
        return taken
