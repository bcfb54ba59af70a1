"""Run a case: all methods interleaved in one lab, medians with their extremes, ratios to the first method.

Rank 0 appends a line to a file after every step. So the launcher can show progress, and a case that fails keeps the
steps before the failure.
"""

import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from thinwire.bench import (
    bits,
    convergence,
    crossmesh,
    exchange,
    fsdp,
    fullgraph,
    gradients,
    methods,
    minibatch,
    pipeline,
    policies,
    sync,
    training,
)
from thinwire.bench.case import Case
from thinwire.bench.columns import Column
from thinwire.bench.result import CaseResult, MethodRow
from thinwire.launch import Lab, LabUnavailable, RankFailed
from thinwire.links import Door
from thinwire.scratch import scratch_folder


class Workload(Protocol):
    """What a case runs: a module with these functions, and with the columns and the caption of its table.

    It may have three more: LIMIT, the method whose seconds are the limit (`free`, if it has none); `summary`, figures
    that it adds to a method's row; `before_round`, which each rank calls before the methods take their steps.
    """

    @property
    def COLUMNS(self) -> tuple[Column, ...]: ...  # noqa: N802 (a module's constant)
    @property
    def CAPTION(self) -> str: ...  # noqa: N802 (likewise); with braces for the number of runs
    def check(self, methods: tuple[str, ...], settings: Mapping[str, Any], /) -> None: ...
    def set_up(self, case: Case, folder: Path, /) -> None: ...  # once, before ranks start
    def prepare(self, door: Door, case: Case, folder: Path, /) -> Any: ...  # on each rank, not timed
    # Seconds and bytes of a step are divided by its units.
    def units(self, method: str, settings: Mapping[str, Any], /) -> int: ...
    def step(self, door: Door, method: str, prepared: Any, case: Case, seed: int, /) -> dict[str, Any]: ...


WORKLOADS: dict[str, Workload] = {
    "exchange": exchange,
    "fullgraph": fullgraph,
    "training": training,
    "bits": bits,
    "minibatch": minibatch,
    "policies": policies,
    "gradients": gradients,
    "convergence": convergence,
    "fsdp": fsdp,
    "crossmesh": crossmesh,
    "sync": sync,
    "pipeline": pipeline,
}
# Workloads whose steps are whole runs. They have no warm-up, which would be another whole run.
WHOLE = ("training", "convergence", "fsdp")
LOOK_S = 0.2
EVENTS = "events.jsonl"
CHANNEL = "harness"


def check(case: Case) -> None:
    """Raise if the workload is unknown, or does not know the methods or settings."""
    if case.workload not in WORKLOADS:
        raise ValueError(f"{case.name}: workload {case.workload!r} is not known; known are {', '.join(WORKLOADS)}")
    WORKLOADS[case.workload].check(case.methods, case.settings)


def run(case: Case, *, on_progress: Callable[[float, str], None] = lambda share, what: None) -> CaseResult:
    """Run a case in its own lab."""
    check(case)
    with scratch_folder("bench") as folder:
        events = folder / EVENTS
        events.touch()
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(events, case, over, on_progress))
        watcher.start()
        failed = None
        try:
            on_progress(0.0, "setting up")
            WORKLOADS[case.workload].set_up(case, folder)
            with Lab(case.hosts, rate=case.rate, rates=case.rates or None) as lab:
                lab.run(_rank, case, str(folder), ranks_per_host=case.ranks_per_host)
        except RankFailed as error:
            failed = str(error)
        except LabUnavailable as error:
            raise ValueError(str(error)) from None
        finally:
            over.set()
            watcher.join()
        return CaseResult(case, summarise(case, _read(events)), failed)


def summarise(case: Case, steps: list[dict[str, Any]]) -> list[MethodRow]:
    """One row per method from its steps. Pure. Methods without steps are left out."""
    kept = [step for step in steps if step["repeat"] >= 0]
    by_method = {method: [step for step in kept if step["method"] == method] for method in case.methods}
    medians = {
        method: statistics.median(step["seconds"] for step in method_steps)
        for method, method_steps in by_method.items()
        if method_steps
    }
    limit = getattr(WORKLOADS.get(case.workload), "LIMIT", methods.FREE)
    first, free = medians.get(case.methods[0]), medians.get(limit)
    summary = getattr(WORKLOADS.get(case.workload), "summary", None)
    rows = []
    for method, median in medians.items():
        method_steps = by_method[method]
        rows.append(
            MethodRow(
                method=method,
                seconds_median=median,
                seconds_low=min(step["seconds"] for step in method_steps),
                seconds_high=max(step["seconds"] for step in method_steps),
                ratio=first / median if first else float("nan"),
                bytes=method_steps[-1]["bytes"],
                exposed_share=statistics.median(step["exposed_s"] / step["seconds"] for step in method_steps),
                repeats=len(method_steps),
                channels=method_steps[-1].get("channels", {}),
                limit_ratio=median / free if free else None,
                more=summary(case, method, by_method) if summary else None,
            )
        )
    return rows


def _rank(case: Case, folder: str) -> None:
    workload = WORKLOADS[case.workload]
    with Door(limit_s=case.limit_s) as door:
        prepared = workload.prepare(door, case, Path(folder))
        # Repeat -1 warms up connections and code, and is not kept. Whole runs have no warm-up.
        for repeat in range(0 if case.workload in WHOLE else -1, case.repeats):
            if hasattr(workload, "before_round"):
                workload.before_round(door, prepared, case)
            for method in case.methods:
                line = _step(door, workload, method, prepared, case, repeat)
                if door.rank == 0:
                    with (Path(folder) / EVENTS).open("a") as file:
                        file.write(json.dumps(line) + "\n")


def _step(door: Door, workload: Workload, method: str, prepared: Any, case: Case, repeat: int) -> dict[str, Any]:
    """One step of a method: the seconds of the slowest rank, the bytes of all ranks."""
    door.step = repeat
    door.barrier(channel=CHANNEL)  # all start together
    door.books.take()
    start = time.perf_counter()
    facts = workload.step(door, method, prepared, case, case.seed + repeat + 1)
    seconds = time.perf_counter() - start
    books = door.books.take()
    sent = {name: book.bytes_sent for name, book in books.items()}
    by_rank = door.gather_json([seconds, sum(book.exposed_s for book in books.values()), sent], channel=CHANNEL)
    units = workload.units(method, case.settings)
    slowest = max(by_rank, key=lambda row: float(row[0]))
    # Ranks may have used different channels.
    names = sorted({name for _, _, rank_channels in by_rank for name in rank_channels})
    channels = {name: int(sum(rank_channels.get(name, 0) for _, _, rank_channels in by_rank) / units) for name in names}
    line = {"method": method, "repeat": repeat, "seconds": slowest[0] / units, "exposed_s": slowest[1] / units}
    return line | {"bytes": sum(channels.values()), "channels": channels} | facts


def _watch(events: Path, case: Case, over: threading.Event, on_progress: Callable[[float, str], None]) -> None:
    warm_up = 0 if case.workload in WHOLE else 1
    total = (case.repeats + warm_up) * len(case.methods)
    while not over.wait(LOOK_S):
        steps = _read(events)
        upcoming = case.methods[len(steps) % len(case.methods)]
        on_progress(len(steps) / total, upcoming if steps else "starting ranks")


def _read(events: Path) -> list[dict[str, Any]]:
    """The steps written so far. Only complete lines: the last one may still be being written."""
    whole, _, _ = events.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
