"""`thinwire bench`."""

import os
import subprocess
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console

from thinwire import artifacts
from thinwire.bench import batches
from thinwire.bench import codec as codec_bench
from thinwire.bench.case import Case, load_case
from thinwire.cli import limit, predictions, progress, tables
from thinwire.cli.limit import Limit
from thinwire.launch import lab
from thinwire.training import machine

CODEC = "codec"
BATCHES = "batches"
RESULTS = Path("benchmarks/results")


@dataclass
class Bench:
    """Measure methods side by side in one run, interleaved; medians count.

    thinwire bench codec                  every codec beside memcpy and plain torch

    thinwire bench codec --threads 2      the same on two threads

    thinwire bench batches                sampling batches and computing on them, beside DGL, PyG and numpy

    thinwire bench benchmarks/cases/exchange.toml  a case on emulated hosts (root)

    thinwire bench --clean                remove emulated hosts that a crash left
    """

    joins: ClassVar[bool] = False
    case: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="CASE")]] = ""
    """What to measure: codec, batches or a case file."""
    clean: tyro.conf.FlagCreatePairsOff[bool] = False
    """Remove the network namespaces that dead processes left; measure nothing."""
    rows: int = 100_000
    """codec: number of rows of the tensor."""
    columns: int = 256
    """codec: number of columns of the tensor."""
    threads: int = 1
    """codec: number of threads for codecs, their torch twins and memcpy."""
    repeats: int = 5
    """codec, batches: how often each is timed; the median counts."""
    seed: int = 0
    """codec: seed of the tensor and of the rounding; batches: of the graph."""
    limit: Limit = limit.USUAL
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file too."""
    save: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the result as benchmarks/results/DATE-CASE.json too."""

    def verify(self) -> None:
        if self.clean:
            if problem := lab.missing():
                raise ValueError(problem)
            return
        if not self.case:
            raise ValueError("which case? For example `thinwire bench codec`, or a file of benchmarks/cases")
        limit.check(self.limit)
        for path in self._files():
            artifacts.check_writable(path)
        if self.case not in (CODEC, BATCHES):
            if not self.case.endswith(".toml"):
                raise ValueError(f"there is no case {self.case!r}; give codec, batches or a case file (.toml)")
            case = load_case(Path(self.case))
            _bench_of(case).check(case)
            return
        for name in ("rows", "columns", "threads", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}; give 1 or more")
        if self.threads > (cores := os.cpu_count() or 1):
            raise ValueError(f"--threads is {self.threads}; this machine has {cores} cores, and more would only wait")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed is {self.seed}; give 0 or more, below 2**63")
        if (needed := codec_bench.memory_bytes(self.rows, self.columns)) > (total := _memory_bytes()):
            raise ValueError(
                f"{self.rows} x {self.columns} needs about {needed / 1e9:.1f} GB, this machine has {total / 1e9:.1f}; "
                "give fewer --rows or --columns"
            )

    def run(self, console: Console) -> None:
        if self.clean:
            console.print(f"removed {len(lab.sweep())} namespaces of dead labs", highlight=False)
            return
        measure = {CODEC: self._codec, BATCHES: self._batches}.get(self.case, self._case)
        content, seed, world_size = measure(console)
        stamp = {**artifacts.stamp(seed=seed, world_size=world_size), "commit": _commit(), "machine": machine.facts()}
        for path in self._files():
            artifacts.write_json(path, {**stamp, **content})
            console.print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)
        if content.get("failed"):
            raise ValueError(f"{self.case} did not end; the table has what came before. {content['failed']}")

    def _codec(self, console: Console) -> tuple[dict[str, Any], int, int]:
        with progress.bar("codecs") as on_progress:
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

    def _batches(self, console: Console) -> tuple[dict[str, Any], int, int]:
        with progress.bar("batches") as on_progress:
            result = batches.run(repeats=self.repeats, seed=self.seed, on_progress=on_progress)
        console.print(tables.batches(result))
        return result.to_json(), self.seed, 1

    def _case(self, console: Console) -> tuple[dict[str, Any], int, int]:
        from thinwire.prediction import check  # as in _bench_of

        case = replace(load_case(Path(self.case)), limit_s=self.limit)
        with progress.bar(case.name) as on_progress:
            bench = _bench_of(case)
            result = bench.run(case, on_progress=on_progress)
        console.print(tables.methods(result))
        content = result.to_json()
        if predicted := bench is check:
            median, worst = check.errors(result.rows)
            console.print(predictions.off(result, median, worst), highlight=False)
            content |= {"predicted_off_median": median, "predicted_off_worst": worst}
        if problems := tables.problems(result):
            console.print(problems)
        for line in tables.thinner(result) if not predicted else ():
            console.print(line, highlight=False)
        return content, case.seed, case.hosts * case.ranks_per_host

    def _files(self) -> list[Path]:
        files = [self.json] if self.json is not None else []
        if self.save:
            files.append(_unused(RESULTS / f"{date.today().isoformat()}-{Path(self.case).stem}.json"))
        return files


def _bench_of(case: Case) -> Any:
    """The module that checks and runs the case. Imported here: codec and batches do not need all its workloads."""
    from thinwire.bench import harness
    from thinwire.prediction import check

    return check if case.workload == check.WORKLOAD else harness


def _unused(path: Path) -> Path:
    """A path that does not exist yet. Results are never overwritten: the second of a day ends in -2."""
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str | None:
    """The commit of the checkout that this runs from, with a plus if files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
