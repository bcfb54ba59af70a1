"""The `thinwire` command: one dataclass of options a subcommand. The only place that prints."""

import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from thinwire import __version__, artifacts
from thinwire.bench import codec as codec_bench
from thinwire.launch import lab

ABOUT = "Distributed training that waits less for the network. Each subcommand has its --help; --version says which."
CASES = ("codec",)


@dataclass
class Bench:
    """Measure methods side by side in one run, interleaved; medians count.

    thinwire bench codec                  every codec beside memcpy and plain torch

    thinwire bench codec --threads 2      the same on two threads

    thinwire bench codec --json out.json  the rows, with their spread, for a program

    thinwire bench --clean                remove emulated hosts that a crash left
    """

    case: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="CASE")]] = ""
    """What to measure: codec."""
    clean: tyro.conf.FlagCreatePairsOff[bool] = False
    """Remove network namespaces of labs whose process is dead; measure nothing."""
    rows: int = 100_000
    """Rows of the tensor."""
    columns: int = 256
    """Columns of the tensor."""
    threads: int = 1
    """Threads for codecs, twins and memcpy alike."""
    repeats: int = 5
    """Timings of each codec; the median counts."""
    seed: int = 0
    """Seed of the tensor and of the rounding."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file too."""

    def check(self) -> None:
        if self.clean:
            return
        if not self.case:
            raise ValueError(f"which case? Known: {', '.join(CASES)}; for example `thinwire bench codec`")
        if self.case not in CASES:
            raise ValueError(f"there is no case {self.case!r}; known: {', '.join(CASES)}")
        for name in ("rows", "columns", "threads", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}; give 1 or more")
        if self.threads > (cores := os.cpu_count() or 1):
            raise ValueError(f"--threads is {self.threads}; this machine has {cores} cores, and more would only wait")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed is {self.seed}; give 0 or more, below 2**63")
        if (needed := codec_bench.memory_bytes(self.rows, self.columns)) > (there := _memory_bytes()):
            raise ValueError(
                f"{self.rows} x {self.columns} needs about {needed / 1e9:.1f} GB, this machine has {there / 1e9:.1f}; "
                "give fewer --rows or --columns"
            )
        if self.json is not None:
            artifacts.check_writable(self.json)

    def run(self, console: Console) -> None:
        if self.clean:
            console.print(f"removed {len(lab.sweep())} namespaces of dead labs", highlight=False)
            return
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=(terminal := Console(stderr=True)),
            transient=True,
            disable=not terminal.is_terminal,
        ) as progress:
            bar = progress.add_task("codecs", total=1.0)
            result = codec_bench.run(
                num_rows=self.rows,
                num_columns=self.columns,
                threads=self.threads,
                repeats=self.repeats,
                seed=self.seed,
                on_progress=lambda share, what: progress.update(bar, completed=share, description=what),
            )
        console.print(_codec_table(result))
        console.print(_topk_line(result), highlight=False)
        if self.json is not None:
            artifacts.write_json(self.json, {**artifacts.stamp(seed=self.seed, world_size=1), **result.to_json()})
            console.print(f"written: {self.json}", highlight=False)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _codec_table(result: codec_bench.CodecBench) -> Table:
    memcpy = statistics.median(row.memcpy_gbps for row in result.rows)
    threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
    table = Table(
        title=f"Codecs on {result.num_rows:,} x {result.num_columns} float32, {threads}, {result.isa}",
        caption=(
            f"GB of float32 a second into reused memory, median of {result.repeats} interleaved runs; "
            f"/copy: beside memcpy, here {memcpy:.1f} GB/s; /twin: beside the same codec in plain torch"
        ),
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("codec", no_wrap=True)
    for heading in ("bits", "thinner", "encode", "/copy", "/twin", "decode", "/copy", "/twin"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(
            row.codec,
            f"{row.bits:.2g}",
            f"{row.float32_over_bytes:.1f}x",
            f"{row.encode_gbps:.2f}",
            f"{row.encode_vs_memcpy:.2f}",
            f"{row.encode_vs_twin:.1f}",
            f"{row.decode_gbps:.2f}",
            f"{row.decode_vs_memcpy:.2f}",
            f"{row.decode_vs_twin:.1f}",
        )
    return table


def _topk_line(result: codec_bench.CodecBench) -> str:
    shown = [f"{row.codec} {row.encode_vs_torch_topk:.1f}x" for row in result.rows if row.encode_vs_torch_topk]
    return f"beside torch.topk(sorted=False) on ready magnitudes: {', '.join(shown)}"


COMMANDS: dict[str, Callable[..., Bench]] = {"bench": Bench}


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, and turn a caller's mistake into one line instead of a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console()
    if arguments == ["--version"]:
        console.print(f"thinwire {__version__}", highlight=False)
        return
    try:
        command = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="thinwire", description=ABOUT, args=arguments)
        command.check()
        command.run(console)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"thinwire: {error}", style="red", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("thinwire: interrupted")
        sys.exit(130)
