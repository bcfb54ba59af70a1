"""A progress bar while work lasts; nothing if standard error is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def bar(what: str) -> Iterator[Callable[[float, str], None]]:
    """Yield a function that takes the share done and a description of the work under way."""
    terminal = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=terminal,
        transient=True,
        disable=not terminal.is_terminal,
    ) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share, now: progress.update(task, completed=share, description=now)
