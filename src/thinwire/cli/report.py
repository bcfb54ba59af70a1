"""`thinwire report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from thinwire import artifacts, report
from thinwire.report import Run, tensorboard
from thinwire.report.summary import summary
from thinwire.report.units import bytes_text, seconds_text, share_text

PAGE, TRACE = "report.html", "trace.json"
COLOURS = {"complete": "green", "failed": "red", "unfinished": "yellow"}


@dataclass
class Report:
    """Write one page about runs, finished or not, and a trace of what each rank did when.

    thinwire report run                            run/report.html, run/trace.json

    thinwire report exact sylvie adaqp             all three in one page, ./report.html

    thinwire report run --tensorboard boards       scalars for TensorBoard too
    """

    joins: ClassVar[bool] = False
    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]
    """Folders that `thinwire train --out` has written."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File for the page. By default report.html: in the run's folder for one RUN, here for several."""
    trace: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File for the trace, for ui.perfetto.dev. By default trace.json beside the page."""
    tensorboard: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write the scalars for TensorBoard too, in a folder for each run inside this one."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write a summary to this file too."""

    def verify(self) -> None:
        if not self.runs:
            raise ValueError("which run? Give a folder that `thinwire train --out` has written")
        self._read = report.read_runs(self.runs)
        files = self._page(), self._trace(), *([self.json] if self.json is not None else [])
        for path in files:
            artifacts.check_writable(path)
        if len({path.resolve() for path in files}) < len(files):
            raise ValueError("--out, --trace and --json lead to the same file; name different ones")
        if self.tensorboard is not None:
            tensorboard.check(self.tensorboard, self._read)

    def run(self, console: Console) -> None:
        runs = self._read
        report.write_page(self._page(), runs)
        report.write_trace(self._trace(), runs)
        if self.tensorboard is not None:
            tensorboard.write_scalars(self.tensorboard, runs)
        console.print(_table(runs))
        for run in runs:
            if run.state.word != "complete":
                console.print(f"{run.label}: {run.state.sentence}", highlight=False, markup=False)
        written = {"page": self._page(), "trace (for ui.perfetto.dev)": self._trace(), "TensorBoard": self.tensorboard}
        for what, path in written.items():
            if path is not None:
                console.print(f"{what}: {path}", highlight=False, markup=False, soft_wrap=True)
        if self.json is not None:
            content = {"page": str(self._page()), "trace": str(self._trace()), "runs": [summary(run) for run in runs]}
            artifacts.write_json(self.json, {**artifacts.stamp(seed=0, world_size=1), **content})
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)

    def _page(self) -> Path:
        if self.out is not None:
            return self.out
        return (self.runs[0] if len(self.runs) == 1 else Path()) / PAGE

    def _trace(self) -> Path:
        return self.trace if self.trace is not None else self._page().parent / TRACE


def _table(runs: list[Run]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("method", overflow="fold")
    for heading in ("epochs", "test score", "an epoch", "bytes", "state"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        figures = summary(run)
        table.add_row(
            escape(run.label),
            escape(run.method) or "-",
            f"{run.done}" if run.asked is None else f"{run.done}/{run.asked}",
            share_text(figures["test_score"]),
            seconds_text(figures["epoch_s_median"]),
            bytes_text(figures["bytes_per_epoch"]),
            f"[{COLOURS[run.state.word]}]{run.state.word}[/]",
        )
    return table
