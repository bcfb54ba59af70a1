"""Predictions on a terminal: a table of methods, and a chart of speed-ups by rate."""

from __future__ import annotations  # CaseResult is imported for type checking only

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from thinwire.bench.methods import is_sampled
from thinwire.prediction import Prediction
from thinwire.prediction.comparison import base_of, comparable

if TYPE_CHECKING:
    from thinwire.bench.result import CaseResult

BARS = " ▁▂▃▄▅▆▇█"


def table(prediction: Prediction, title: str) -> Table:
    """A row for each method; the recommended one is highlighted."""
    shown = Table(
        title=escape(title), caption=prediction.why, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    shown.add_column("method", no_wrap=True)
    for heading in ("epoch", "speed-up", "waits", "MB/epoch", "GB/rank", "model"):
        shown.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
    any_coded = any(row.gradients != "none" for row in prediction.rows)
    if any_coded:
        shown.add_column("gradients", no_wrap=True)
    for row in prediction.rows:
        is_best = row.method == prediction.recommended
        shown.add_row(
            f"{row.method} *" if is_best else row.method,
            seconds(row.epoch_s),
            f"{row.speedup:.2f}x",
            f"{row.waits:.0%}",
            f"{row.bytes_per_epoch / 1e6:,.2f}",
            f"{row.memory_bytes / 1e9:.2f}",
            row.model,
            *([row.gradients] if any_coded else []),
            style="bold green" if is_best else "dim" if is_sampled(row.method) else "",
        )
    return shown


def chart(prediction: Prediction) -> Table:
    """Speed-up over exact at each rate, as a number and a bar. The fastest at a rate is green and has a full bar."""
    shown = Table(
        title="speed-up by the rate of the links",
        caption="bars: beside the fastest at that rate, among those that train on the whole graph",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    shown.add_column("method", no_wrap=True)
    for rate in prediction.rates:
        shown.add_column(rate.replace("bit", ""), justify="right", no_wrap=True)
    for row in prediction.rows:
        cells = []
        for seconds_of in prediction.rates.values():
            best = min(comparable(seconds_of).values())
            epoch_s = seconds_of[row.method]
            bar = BARS[round(min(1.0, best / epoch_s) * (len(BARS) - 1))]
            speedup = seconds_of[base_of(seconds_of)] / epoch_s
            figure = f"{speedup:.0f}" if speedup >= 9.95 else f"{speedup:.1f}"
            style = "green" if epoch_s <= best else "dim" if is_sampled(row.method) else ""
            cells.append(Text(f"{figure}{bar}", style=style))
        shown.add_row(row.method, *cells)
    return shown


def seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def off(result: CaseResult, median: float, worst: float) -> str:
    """How far predictions were from measurements, and how much slower the recommended method was than the best."""
    lost = _lost(result)
    return (
        f"predicted epochs: {median:.1%} off in the median, {worst:.1%} at worst; the recommended method over the "
        f"measured best: {', '.join(f'{ratio:.3f}' for ratio in lost)}"
    )


def _lost(result: CaseResult) -> Sequence[float]:
    ratios = [(row.more or {}).get("recommended_over_best") for row in result.rows]
    return [ratio for ratio in ratios if ratio is not None]
