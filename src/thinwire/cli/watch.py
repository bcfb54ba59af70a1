"""Follow a run by its events: a progress bar on a terminal, otherwise a line from time to time."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from thinwire.cli import progress, tables

LOOK_S = 0.2
# Lines in all, if there is no terminal.
LINES = 10


@contextmanager
def watched(events: Path, what: str, epochs: int, console: Console) -> Iterator[None]:
    """Inside the block, epochs are shown as they are written to `events`."""
    if console.quiet:
        yield
        return
    over = threading.Event()
    shown_before = set(_lines(events))  # lines of a run that is resumed
    with progress.bar(f"{what}: starting") as show:
        watcher = threading.Thread(target=_watch, args=(events, what, shown_before, epochs, over, console, show))
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _watch(
    events: Path,
    what: str,
    seen: set[str],
    epochs: int,
    over: threading.Event,
    console: Console,
    show: Callable[[float, str], None],
) -> None:
    last = False
    while not last:
        last = over.wait(LOOK_S)
        for line in _lines(events):
            if line in seen:
                continue
            seen.add(line)
            row = json.loads(line)
            shown = tables.epoch_line(what, row, epochs)
            show((row["epoch"] + 1) / epochs, shown)
            if not console.is_terminal and (row["epoch"] + 1) % max(1, epochs // LINES) == 0:
                console.print(shown, highlight=False)


def _lines(events: Path) -> list[str]:
    """The complete lines of the file."""
    return events.read_text().rpartition("\n")[0].splitlines() if events.exists() else []
