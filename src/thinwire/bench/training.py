"""Workload `training`: whole runs, one per seed. Scores, and the seconds to reach the final score of `exact`."""

import itertools
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from thinwire import graphs
from thinwire.bench import columns, methods
from thinwire.bench.case import Case
from thinwire.bench.fullgraph import set_up
from thinwire.bench.result import MethodRow
from thinwire.fullgraph import Exact
from thinwire.links import Door
from thinwire.training.job import Job

__all__ = ["CAPTION", "COLUMNS", "check", "prepare", "set_up", "step", "summary", "units"]

MORE = {"evaluate_every": int, "timed": bool}


def _is_timed(case: Case, rows: Sequence[MethodRow]) -> bool:
    return bool(case.settings.get("timed"))


def _has_losses(case: Case, rows: Sequence[MethodRow]) -> bool:
    """Results saved before losses were kept have none."""
    return any((row.more or {}).get("loss") is not None for row in rows)


COLUMNS = (
    replace(columns.SECONDS, is_shown=_is_timed),
    replace(columns.RATIO, is_shown=_is_timed),
    columns.MB_SENT,
    replace(columns.figure("loss", "loss", ".3f"), is_shown=_has_losses),
    columns.figure("score", "score", ".2%"),
    columns.figure("points", "points_to_exact", "+.2f"),
    columns.figure("best", "best_score", ".2%"),
    columns.figure("points", "best_points_to_exact", "+.2f"),
    replace(columns.figure("to exact's", "to_score_s", ".4g"), is_shown=_is_timed),
)
CAPTION = (
    "{} seeds; mean test score after the last epoch, and in the epoch of the best validation score, with "
    "points beside `exact` of the same model; where time was taken, median seconds of training, and until that one's "
    "final validation score was reached"
)


def check(names: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    methods.check(names, settings, MORE)


def prepare(door: Door, case: Case, folder: Path) -> tuple[graphs.Shard, graphs.Manifest]:
    return methods.loaded(door, folder)


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, prepared: Any, case: Case, seed: int) -> dict[str, Any]:
    """One run with this seed. With `timed`, seconds come from an extra run before it, without evaluation.

    Evaluation between epochs gives transfers time to arrive, which favours stale methods. Runs are reproducible, so
    both train alike.
    """
    job = methods.job_of(method, case.settings, seed)
    clock = _clock(job, prepared, door) if case.settings.get("timed") else None
    run = _run(replace(job, evaluate_every=case.settings.get("evaluate_every", 5)), prepared, door)
    for epoch in range(job.epochs):
        run.epoch(epoch)
    run.settle()  # wait for transfers still under way, so that they don't slow down the next method
    clock = clock or list(itertools.accumulate(row["seconds"] for row in run.rows))
    curve = [(seconds, row["val_score"]) for seconds, row in zip(clock, run.rows, strict=True)]
    sums = {name: sum(row[name] for row in run.rows) for name in ("exposed_s", "bytes")}
    scores = {**run.scores, "best_test_score": _at_best(run.rows)}
    return {"seconds": clock[-1], "curve": curve, **sums, **scores, "loss": run.losses[-1]}


def _at_best(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The test score in the first epoch with the best validation score, as papers report. None without either."""
    known = [row for row in rows if row["val_score"] is not None]
    best = max(known, key=lambda row: float(row["val_score"]), default=None)
    return None if best is None or best["test_score"] is None else float(best["test_score"])


def _clock(job: Job[Any], prepared: tuple[graphs.Shard, graphs.Manifest], door: Door) -> list[float]:
    """Seconds until the end of each epoch. The last one includes waiting for all transfers."""
    run = _run(job, prepared, door)
    ends: list[float] = []
    start = time.perf_counter()
    for epoch in range(job.epochs):
        run.step(epoch)
        if epoch + 1 == job.epochs:
            run.settle()
        ends.append(time.perf_counter() - start)
    return ends


def _run(job: Job[Any], prepared: tuple[graphs.Shard, graphs.Manifest], door: Door) -> Any:
    return methods.run_of(job, prepared[0], door, prepared[1])


def summary(case: Case, method: str, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Mean and extremes of test scores over seeds, beside `exact` of the same model, and the time to its score."""
    method_lines = lines[method]
    scores = [line["test_score"] for line in method_lines if line["test_score"] is not None]
    figures = {
        "loss": _mean(line["loss"] for line in method_lines),
        "score": _mean(scores),
        "score_low": min(scores, default=None),
        "score_high": max(scores, default=None),
        "best_score": _mean(line["best_test_score"] for line in method_lines),
    }
    exact = lines.get(_exact_beside(case, method), [])
    goals = {line["repeat"]: line for line in exact}
    pairs = [(line, goals[line["repeat"]]) for line in method_lines if line["repeat"] in goals]
    if pairs:
        reached = [_reached_s(line["curve"], goal["val_score"]) for line, goal in pairs]
        known = [seconds for seconds in reached if seconds is not None]
        figures["points_to_exact"] = _mean(_points(line, goal, "test_score") for line, goal in pairs)
        figures["best_points_to_exact"] = _mean(_points(line, goal, "best_test_score") for line, goal in pairs)
        figures["to_score_s"] = statistics.median(known) if 2 * len(known) > len(reached) else None
        figures["reached"] = len(known)
    return figures


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of known values. A graph without test nodes has no scores."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _points(line: Mapping[str, Any], goal: Mapping[str, Any], name: str) -> float | None:
    return None if line[name] is None or goal[name] is None else 100 * float(line[name] - goal[name])


def _exact_beside(case: Case, method: str) -> str:
    """The first `exact` method of the same model, or ''."""
    model = methods.job_of(method, case.settings, 0).model
    same = (other for other in case.methods if methods.job_of(other, case.settings, 0).model == model)
    return next((other for other in same if other.split()[0] == Exact.name), "")


def _reached_s(curve: Sequence[Sequence[float | None]], goal: float | None) -> float | None:
    if goal is None:
        return None
    return next((seconds for seconds, score in curve if score is not None and score >= goal), None)
