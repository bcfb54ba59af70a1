"""The `thinwire` command: one dataclass of options a subcommand. The only place that prints; tables.py says how."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from thinwire import __version__, artifacts, launch, tables
from thinwire.bench import codec as codec_bench
from thinwire.bench import harness
from thinwire.bench import links as links_bench
from thinwire.bench.case import load_case
from thinwire.launch import Lab, lab

ABOUT = "Distributed training that waits less for the network. Each subcommand has its --help; --version says which."
CODEC = "codec"
RESULTS = Path("benchmarks/results")
CHECK_DRAWS = 20


@dataclass
class Bench:
    """Measure methods side by side in one run, interleaved; medians count.

    thinwire bench codec                  every codec beside memcpy and plain torch

    thinwire bench codec --threads 2      the same on two threads

    thinwire bench benchmarks/cases/exchange.toml  a case on emulated hosts (root)

    thinwire bench --clean                remove emulated hosts that a crash left
    """

    case: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="CASE")]] = ""
    """What to measure: codec, or a case file."""
    clean: tyro.conf.FlagCreatePairsOff[bool] = False
    """Remove network namespaces of labs whose process is dead; measure nothing."""
    rows: int = 100_000
    """codec: rows of the tensor."""
    columns: int = 256
    """codec: columns of the tensor."""
    threads: int = 1
    """codec: threads for codecs, twins and memcpy alike."""
    repeats: int = 5
    """codec: timings of each; the median counts."""
    seed: int = 0
    """codec: seed of the tensor and of the rounding."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file too."""
    save: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the result as benchmarks/results/DATE-CASE.json too."""

    def verify(self) -> None:
        if self.clean:
            return
        if not self.case:
            raise ValueError("which case? For example `thinwire bench codec`, or a file of benchmarks/cases")
        for path in self._files():
            artifacts.check_writable(path)
        if self.case != CODEC:
            if not self.case.endswith(".toml"):
                raise ValueError(f"there is no case {self.case!r}; give codec or a case file (.toml)")
            harness.check(load_case(Path(self.case)))
            return
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

    def run(self, console: Console) -> None:
        if self.clean:
            console.print(f"removed {len(lab.sweep())} namespaces of dead labs", highlight=False)
            return
        content, seed, world_size = self._codec(console) if self.case == CODEC else self._case(console)
        for path in self._files():
            artifacts.write_json(path, {**artifacts.stamp(seed=seed, world_size=world_size), **content})
            console.print(f"written: {path}", highlight=False)
        if content.get("failed"):
            raise ValueError(f"{self.case} did not end; the table has what came before. {content['failed']}")

    def _codec(self, console: Console) -> tuple[dict[str, Any], int, int]:
        with _progress("codecs") as on_progress:
            result = codec_bench.run(
                num_rows=self.rows,
                num_columns=self.columns,
                threads=self.threads,
                repeats=self.repeats,
                seed=self.seed,
                on_progress=on_progress,
            )
        console.print(tables.codecs(result))
        console.print(tables.topk_line(result), highlight=False)
        return result.to_json(), self.seed, 1

    def _case(self, console: Console) -> tuple[dict[str, Any], int, int]:
        case = load_case(Path(self.case))
        with _progress(case.name) as on_progress:
            result = harness.run(case, on_progress=on_progress)
        console.print(tables.methods(result))
        return result.to_json(), case.seed, case.hosts * case.ranks_per_host

    def _files(self) -> list[Path]:
        files = [self.json] if self.json is not None else []
        if self.save:
            files.append(RESULTS / f"{date.today().isoformat()}-{Path(self.case).stem}.json")
        return files


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on the terminal, nothing where there is none."""
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
        bar = progress.add_task(what, total=1.0)
        yield lambda share, now: progress.update(bar, completed=share, description=now)


@dataclass
class Profile:
    """Measure the wires and the codecs here: profile.json, which every plan starts from.

    thinwire profile                              two ranks on this machine

    thinwire profile --hosts 4 --rate 100mbit     four emulated hosts (root, iproute2)

    thinwire profile --hosts 4 --rate 1gbit --check  and how far predictions are off
    """

    workers: int = 2
    """Ranks on this machine."""
    hosts: int = 0
    """Emulated hosts instead, one rank each."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each emulated host's link, both ways."""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Predict 20 random payloads and collectives, then measure them."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("profile.json")
    """Where to write the profile."""
    seed: int = 0
    """Seed of the payloads to check."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file too."""

    def verify(self) -> None:
        for path in (self.out, *([self.json] if self.json else [])):
            artifacts.check_writable(path)
        if self.workers < 1:
            raise ValueError(f"--workers is {self.workers}; give 1 or more")
        if self.hosts and (problem := lab.missing()):
            raise ValueError(problem)

    def run(self, console: Console) -> None:
        with Console(stderr=True).status("codecs on this machine"):
            codecs = codec_bench.run(num_rows=4096, seed=self.seed)
        draws = CHECK_DRAWS if self.check else 0
        if self.hosts:
            waiting = Console(stderr=True).status(f"{self.hosts} emulated hosts at {self.rate}: about half a minute")
            with waiting, Lab(self.hosts, rate=self.rate) as hosts:
                found = hosts.run(links_bench.profile, draws, self.seed)[0]
        else:
            with Console(stderr=True).status(f"{self.workers} ranks on this machine"):
                found = launch.run(links_bench.profile, draws, self.seed, workers=self.workers)[0]
        rates = {row.codec: {"encode_gbps": row.encode_gbps, "decode_gbps": row.decode_gbps} for row in codecs.rows}
        profile = {**artifacts.stamp(seed=self.seed, world_size=found["world_size"]), **found, "codecs": rates}
        if self.hosts:
            profile |= {"hosts": self.hosts, "rate": self.rate}
        console.print(tables.links(found))
        if self.check:
            console.print(tables.check(found["check"]))
        for path in (self.out, *([self.json] if self.json else [])):
            artifacts.write_json(path, profile)
            console.print(f"written: {path}", highlight=False)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


COMMANDS: dict[str, Callable[..., Bench | Profile]] = {"bench": Bench, "profile": Profile}


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, and turn a caller's mistake into one line instead of a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console()
    if arguments == ["--version"]:
        console.print(f"thinwire {__version__}", highlight=False)
        return
    try:
        command = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="thinwire", description=ABOUT, args=arguments)
        command.verify()
        command.run(console)
    except (ValueError, OSError, launch.RankFailed, launch.LabUnavailable) as error:
        Console(stderr=True).print(f"thinwire: {error}", style="red", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("thinwire: interrupted")
        sys.exit(130)
