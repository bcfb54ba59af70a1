"""Charts and a table of predicted seconds and bytes of an epoch, beside measured ones."""

import statistics
from collections.abc import Sequence
from typing import Any

from thinwire.report.figure import (
    Chart,
    Section,
    Table,
    axis,
    bytes_axis,
    layout,
    line,
    plain,
    seconds_axis,
    thinned,
    without,
)
from thinwire.report.records import Run
from thinwire.report.units import NOTHING, bytes_text, seconds_text

# Predicted figures that the chart of bytes can show; it shows the first that a run has.
SIZES = ("halo_bytes", "bytes")
WORDS = {"halo_bytes": "halo bytes an epoch", "bytes": "bytes an epoch", "remote_rows": "rows fetched an epoch"}


def predicted(runs: Sequence[Run]) -> Section:
    return Section(
        "Predicted beside measured",
        "Solid: measured. Dotted: what was predicted for the same epoch, before it began. The table has medians.",
        (_seconds(runs), _sizes(runs)),
        comparison(runs),
    )


def comparison(runs: Sequence[Run]) -> Table | None:
    """Medians over the steady epochs that have a prediction and a measurement, and how far off the prediction was."""
    rows = []
    for run in runs:
        pairs = [(epoch.predicted_s, epoch.seconds) for epoch in run.steady if epoch.predicted_s and epoch.seconds]
        if pairs:
            predicted, measured = (statistics.median(values) for values in zip(*pairs, strict=True))
            rows.append(_row(run, "seconds an epoch", seconds_text, predicted, measured))
        for name, words in WORDS.items():
            sizes = [epoch.predicted[name] for epoch in run.steady if name in epoch.predicted]
            if sizes:
                predicted, measured = (statistics.median(values) for values in zip(*sizes, strict=True))
                rows.append(_row(run, words, _count if name == "remote_rows" else bytes_text, predicted, measured))
        rows += _planned(run)
    return Table(("run", "what", "predicted", "measured", "off by"), tuple(rows), texts=2) if rows else None


def _planned(run: Run) -> list[tuple[str, ...]]:
    """Rows for the prediction made before the run, of the method that the run then used."""
    rows = []
    for row in run.prediction.rows if run.prediction else ():
        seconds, size = run.median("seconds"), run.median("bytes")
        if row.method == run.predicted_as and seconds:
            rows.append(_row(run, "seconds an epoch, planned", seconds_text, row.epoch_s, seconds))
            if row.bytes_per_epoch and size:
                rows.append(_row(run, "bytes an epoch, planned", bytes_text, row.bytes_per_epoch, size))
    return rows


def _row(run: Run, what: str, form: Any, predicted: float, measured: float) -> tuple[str, ...]:
    off = f"{predicted / measured - 1:+.0%}".replace("+0%", "0%").replace("-0%", "0%") if measured else NOTHING
    return (run.label, what, form(predicted), form(measured), off)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _seconds(runs: Sequence[Run]) -> Chart:
    shown = [
        (number, [(epoch.number + 1, epoch.predicted_s, epoch.seconds) for epoch in run.epochs if epoch.seconds])
        for number, run in enumerate(runs)
        if any(epoch.predicted_s for epoch in run.epochs)
    ]
    note = without(
        [run for run in runs if not any(e.predicted_s for e in run.epochs)],
        "their seconds were not predicted epoch by epoch",
    )
    if not shown:
        return Chart("predicted-seconds", "seconds", None, note)
    # The axis ignores rare long epochs, as when the machine pauses: they would flatten the rest.
    usual = [statistics.quantiles([s for _, _, s in rows], n=20)[-1] for _, rows in shown if len(rows) > 1]
    expected = [predicted for _, rows in shown for _, predicted, _ in rows if predicted]
    top = 1.3 * max([*usual, *expected])
    vertical = seconds_axis("seconds an epoch", top) | {"range": [0, top]}
    return Chart("predicted-seconds", "seconds", _lines(runs, shown, vertical, "s"), note)


def _sizes(runs: Sequence[Run]) -> Chart:
    shown = []
    for number, run in enumerate(runs):
        name = next((size for size in SIZES if any(size in epoch.predicted for epoch in run.epochs)), None)
        if name is not None:
            epochs = [epoch for epoch in run.epochs if name in epoch.predicted]
            later = [epoch for epoch in epochs if epoch.number or len(run.epochs) == 1]
            shown.append((number, [(epoch.number + 1, *epoch.predicted[name]) for epoch in later]))
    drawn = [number for number, _ in shown]
    rest = [run for number, run in enumerate(runs) if number not in drawn]
    note = without(rest, "their bytes were not predicted epoch by epoch")
    if not any(rows for _, rows in shown):
        return Chart("predicted-bytes", "bytes", None, note)
    return Chart("predicted-bytes", "bytes", _lines(runs, shown, bytes_axis("bytes an epoch"), "B"), note)


def _lines(
    runs: Sequence[Run], shown: Sequence[tuple[int, list[Any]]], vertical: dict[str, Any], unit: str
) -> dict[str, Any]:
    traces = []
    for number, rows in shown:
        for kind, place, dash in (("measured", 2, 0), ("predicted", 1, 2)):
            points = thinned([(row[0], row[place]) for row in rows])
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": plain(runs[number].label),
                    "meta": kind,
                    "legendgroup": str(number),
                    "showlegend": kind == "measured",
                    "x": [x for x, _ in points],
                    "y": [y for _, y in points],
                    "line": {**line(number, dash), "width": 1.5 if kind == "measured" else 2.5},
                    "hovertemplate": f"{kind} %{{y:.4~s}}{unit} in epoch %{{x}}",
                }
            )
    return {"data": traces, "layout": layout(xaxis=axis("epoch", rangemode="tozero"), yaxis=vertical, showlegend=True)}
