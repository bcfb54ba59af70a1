"""Charts of scores and loss against epochs and against seconds, with all runs in one chart."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from thinwire.report.figure import (
    Chart,
    Figure,
    Section,
    axis,
    layout,
    line,
    log_axis,
    plain,
    seconds_axis,
    thinned,
    without,
)
from thinwire.report.records import Epoch, Run

# A loss that falls by a larger factor is drawn on a log axis: on a linear one its end could not be read.
LOG_FROM_RATIO = 20.0


def scores(runs: Sequence[Run]) -> Section:
    return Section(
        "Scores",
        "Solid: test. Dotted: validation. A score holds until the next evaluation; seconds count training alone, not "
        "evaluation or checkpoints.",
        (_scores(runs, by_seconds=False), _scores(runs, by_seconds=True)),
    )


def loss(runs: Sequence[Run]) -> Section:
    return Section(
        "Loss",
        "Of training, over all ranks. Curves that lie on each other by epoch but not by seconds learn the same at "
        "another speed.",
        (_loss(runs, by_seconds=False), _loss(runs, by_seconds=True)),
    )


def _scores(runs: Sequence[Run], *, by_seconds: bool) -> Chart:
    traces = []
    missing = []
    for number, run in enumerate(runs):
        lines: list[dict[str, Any]] = []
        for name, get, dash in (
            ("test", lambda epoch: epoch.test_score, 0),
            ("validation", lambda epoch: epoch.val_score, 2),
        ):
            points = _changes(_points(run, get, by_seconds=by_seconds))
            if points:
                lines.append(_trace(run, number, points, f"{name} %{{y:.2%}}", dash=dash, listed=not lines))
                lines[-1]["line"]["shape"] = "hv"
        traces += lines
        if not lines:
            missing.append(run)
    what = "seconds" if by_seconds else "epochs"
    note = without(missing, "no epoch of theirs has a score" + (" and seconds" if by_seconds else ""))
    drawn = _figure(traces, axis("score", tickformat=".0%"), by_seconds=by_seconds)
    return Chart(f"score-{what}", f"against {what}", drawn, note)


def _loss(runs: Sequence[Run], *, by_seconds: bool) -> Chart:
    traces = []
    missing = []
    for number, run in enumerate(runs):
        points = thinned(_points(run, lambda epoch: epoch.loss, by_seconds=by_seconds))
        if points:
            traces.append(_trace(run, number, points, "loss %{y:.4g}"))
        else:
            missing.append(run)
    values = [value for trace in traces for value in trace["y"]]
    wide = bool(values) and min(values) > 0 and max(values) > LOG_FROM_RATIO * min(values)
    what = "seconds" if by_seconds else "epochs"
    note = without(missing, "no epoch of theirs has a loss" + (" and seconds" if by_seconds else ""))
    vertical = log_axis("loss", values, lambda tick: f"{tick:g}") if wide else axis("loss")
    return Chart(f"loss-{what}", f"against {what}", _figure(traces, vertical, by_seconds=by_seconds), note)


def _points(run: Run, get: Callable[[Epoch], float | None], *, by_seconds: bool) -> list[tuple[float, float]]:
    """(place on the axis, value) of each epoch that has a value; epochs count from 1, as on the terminal."""
    at: Sequence[float] = [epoch.number + 1 for epoch in run.epochs]
    if by_seconds:
        if any(epoch.seconds is None for epoch in run.epochs):  # then their sums would be too small
            return []
        at = list(accumulate(epoch.seconds or 0.0 for epoch in run.epochs))
    return [(x, y) for x, epoch in zip(at, run.epochs, strict=True) if (y := get(epoch)) is not None]


def _changes(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points where the value changes, and the last point."""
    kept = [
        point for before, point in zip([None, *points], points, strict=False) if not before or before[1] != point[1]
    ]
    return thinned(kept if not points or kept[-1] == points[-1] else [*kept, points[-1]])


def _trace(
    run: Run, number: int, points: list[tuple[float, float]], text: str, *, dash: int = 0, listed: bool = True
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "name": plain(run.label),
        "legendgroup": str(number),
        "showlegend": listed,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": line(number, dash),
        "marker": {"color": line(number)["color"]},
        "hovertemplate": f"{text} at %{{x:,.4~g}}",
    }


def _figure(traces: list[Figure], vertical: dict[str, Any], *, by_seconds: bool) -> Figure | None:
    if not traces:
        return None
    largest = max(max(trace["x"]) for trace in traces)
    across = seconds_axis("seconds of training", largest) if by_seconds else axis("epoch", rangemode="tozero")
    return {"data": traces, "layout": layout(xaxis=across, yaxis=vertical, showlegend=True)}
