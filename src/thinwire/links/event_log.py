"""What a rank did when: transfers and waits as they happened, for a trace, and to replay an epoch on other wires.

Kept only while somebody asked for it: an entry costs a few microseconds.
"""

import threading
import time
from dataclasses import dataclass, field


@dataclass
class Entry:
    """A transfer. Times are time.perf_counter's; a wait's come with the seconds that its thread had computed.

    `waits` may be several, as a transfer may be waited for again, and may come from other threads than the post.
    """

    channel: str
    kind: str
    bytes_to: dict[int, int]
    posted: "Moment"
    ended_s: float | None = None
    waits: list[tuple["Moment", "Moment"]] = field(default_factory=list)


@dataclass(frozen=True)
class Moment:
    """When, on which thread, and how long that thread had computed by then."""

    at_s: float
    thread: int
    computed_s: float

    @staticmethod
    def now() -> "Moment":
        return Moment(time.perf_counter(), threading.get_ident(), time.thread_time())


class EventLog:
    """Entries in the order of posting."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.coded: list[tuple[str, float, float]] = []  # channel, from, to
        self.begun = Moment.now()

    def posted(self, channel: str, kind: str, bytes_to: dict[int, int]) -> Entry:
        entry = Entry(channel, kind, dict(bytes_to), Moment.now())
        self.entries.append(entry)  # an append is atomic, so threads need no lock
        return entry
