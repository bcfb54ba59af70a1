"""Run a case: all methods interleaved in one lab, medians with their extremes, ratios to the first method.

Rank 0 writes a line to a file for every step done. So the launcher can show progress, and a case that fails in the
middle still has what came before.
"""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from thinwire.bench import exchange
from thinwire.bench.case import Case
from thinwire.launch import Lab, LabUnavailable, Member, RankFailed
from thinwire.links import Door

WORKLOADS = {"exchange": exchange}
LOOK_S = 0.2


@dataclass(frozen=True)
class MethodRow:
    """One method's steps: seconds until the last rank was done, bytes of all ranks, share of the time spent waiting."""

    method: str
    seconds_median: float
    seconds_low: float
    seconds_high: float
    ratio: float  # the first method's median over this one's
    bytes: int
    exposed_share: float
    repeats: int


@dataclass(frozen=True)
class CaseResult:
    """What a case found; `failed` says what stopped it, if anything did."""

    case: Case
    rows: list[MethodRow]
    failed: str | None

    def to_json(self) -> dict[str, Any]:
        case = asdict(self.case)
        rate = list(self.case.rates) or self.case.rate
        rows = [asdict(row) for row in self.rows]
        return {"case": case.pop("name"), **case, "rate": rate, "rows": rows, "failed": self.failed}


def check(case: Case) -> None:
    """Raise where the workload is not known, or does not know its methods and settings."""
    if case.workload not in WORKLOADS:
        raise ValueError(f"{case.name}: workload {case.workload!r} is not known; known are {', '.join(WORKLOADS)}")
    WORKLOADS[case.workload].check(case.methods, case.settings)


def run(case: Case, *, on_progress: Callable[[float, str], None] = lambda share, what: None) -> CaseResult:
    """Run it in a lab of its own."""
    check(case)
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as folder:
        events = Path(folder) / "events.jsonl"
        events.touch()
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(events, case, over, on_progress))
        watcher.start()
        failed = None
        try:
            with Lab(case.hosts, rate=case.rate, rates=case.rates or None) as lab:
                lab.run(_rank, case, str(events), ranks_per_host=case.ranks_per_host)
        except RankFailed as error:
            failed = str(error)
        except LabUnavailable as error:
            raise ValueError(str(error)) from None
        finally:
            over.set()
            watcher.join()
        return CaseResult(case, summarise(case, _read(events)), failed)


def summarise(case: Case, steps: list[dict[str, Any]]) -> list[MethodRow]:
    """Steps to rows. Pure; methods without a step are left out."""
    rows: list[MethodRow] = []
    first = None
    for method in case.methods:
        own = [step for step in steps if step["method"] == method and step["repeat"] >= 0]
        if not own:
            continue
        seconds = [step["seconds"] for step in own]
        median = statistics.median(seconds)
        if method == case.methods[0]:
            first = median
        rows.append(
            MethodRow(
                method=method,
                seconds_median=median,
                seconds_low=min(seconds),
                seconds_high=max(seconds),
                ratio=first / median if first else float("nan"),
                bytes=own[-1]["bytes"],
                exposed_share=statistics.median(step["exposed_s"] / step["seconds"] for step in own),
                repeats=len(own),
            )
        )
    return rows


def _rank(member: Member, case: Case, events: str) -> None:
    workload = WORKLOADS[case.workload]
    with Door(member.store) as door:
        prepared = workload.prepare(door, case.settings, case.seed)
        # Repeat -1 warms up connections and code, and is not kept.
        for repeat in range(-1, case.repeats):
            for method in case.methods:
                door.step = repeat
                _tell(door, [0.0, 0.0, 0.0])  # all start together
                door.books.take()
                start = time.perf_counter()
                workload.step(door, method, prepared, case.seed + repeat + 1)
                seconds = time.perf_counter() - start
                books = door.books.take().values()
                own = [seconds, sum(book.exposed_s for book in books), float(sum(book.bytes_sent for book in books))]
                told = _tell(door, own)
                if member.rank == 0:
                    slowest = max(told)
                    line = {"method": method, "repeat": repeat, "seconds": slowest[0], "exposed_s": slowest[1]}
                    line["bytes"] = int(sum(each[2] for each in told))
                    with Path(events).open("a") as file:
                        file.write(json.dumps(line) + "\n")


def _tell(door: Door, values: list[float]) -> list[list[float]]:
    mine = torch.tensor(values, dtype=torch.float64)
    everybody = door.all_gather(mine, [mine.nbytes] * door.world_size, channel="harness").wait()
    return [list(map(float, one.clone().view(torch.float64))) for one in everybody]


def _watch(events: Path, case: Case, over: threading.Event, on_progress: Callable[[float, str], None]) -> None:
    total = (case.repeats + 1) * len(case.methods)
    while not over.wait(LOOK_S):
        steps = _read(events)
        upcoming = case.methods[len(steps) % len(case.methods)]
        on_progress(len(steps) / total, upcoming if steps else "starting ranks")


def _read(events: Path) -> list[dict[str, Any]]:
    """Whole lines only: the last may still be under way."""
    whole, _, _ = events.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
