"""What all charts share: their types, colours, axes with units, and escaped text.

Figures are plotly's plain dicts, so that the page can embed them as JSON. A colour is the name of a style variable,
`var(--run-0)`, which the page replaces by its value in the light or the dark scheme.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.report.records import Run

Figure = dict[str, Any]
# Colours of runs in the page's style. Further runs repeat them with other dashes.
COLOURS = 8
DASHES = ("solid", "dash", "dot", "dashdot")
# The longest label that leaves room for the chart on a phone.
LABEL_LENGTH = 26
# Most points of a line: more than a screen can show, and few enough for a page that opens at once.
POINTS = 2000


@dataclass(frozen=True)
class Table:
    """A table whose first `texts` columns are text and the rest figures."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int


@dataclass(frozen=True)
class Chart:
    """`figure` is None if no run has the data; `note` says which runs are left out and why."""

    name: str  # unique in the page, used as its id
    title: str
    figure: Figure | None
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A card of the page: a title, one or two sentences on how to read it, and charts."""

    title: str
    caption: str
    charts: tuple[Chart, ...]
    table: Table | None = None


def colour(number: int) -> str:
    """A run's colour, the same throughout the page."""
    return f"var(--run-{number % COLOURS})"


def line(number: int, dash: int = 0) -> dict[str, Any]:
    return {"color": colour(number), "width": 2, "dash": DASHES[(number // COLOURS + dash) % len(DASHES)]}


def plain(text: str, length: int = LABEL_LENGTH) -> str:
    """The text, escaped so that plotly reads no tags in it; a long text loses its middle."""
    if len(text) > length:
        half = (length - 1) // 2
        text = f"{text[: length - 1 - half]}…{text[len(text) - half :]}"
    return html.escape(text, quote=False)


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": "var(--grid)",
        "linecolor": "var(--grid)",
        "zerolinecolor": "var(--grid)",
        "automargin": True,
        "fixedrange": False,
        **more,
    }


def seconds_axis(title: str, largest_s: float) -> dict[str, Any]:
    # Milliseconds below a second; no kiloseconds above a thousand.
    form = {"tickformat": "~s", "ticksuffix": "s"} if largest_s < 1 else {"tickformat": ",~g", "ticksuffix": " s"}
    return axis(title, **form, rangemode="tozero")


def log_axis(title: str, values: Sequence[float], text_of: Callable[[float], str]) -> dict[str, Any]:
    """A log axis with ticks of our own: plotly's ticks between powers of ten are bare digits, or too many."""
    low, high = math.log10(min(values)), math.log10(max(values))
    steps = (1, 2, 5) if high - low < 3 else (1,)
    powers = range(math.floor(low) - 1, math.ceil(high) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    margin = max(0.05, 0.05 * (high - low))
    shown = [low - margin, high + margin]
    ticks = [tick for tick in ticks if shown[0] <= math.log10(tick) <= shown[1]] or [min(values), max(values)]
    return axis(title, type="log", range=shown, tickvals=ticks, ticktext=[text_of(tick) for tick in ticks])


def bytes_axis(title: str, **more: Any) -> dict[str, Any]:
    return axis(title, tickformat="~s", ticksuffix="B", rangemode="tozero", **more)


def layout(height: int = 340, **more: Any) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--text)", "family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--grid)", "font": {"color": "var(--text)"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        "uirevision": "kept",  # zoom and hidden lines stay when the scheme changes
        **more,
    }


def thinned(points: Sequence[Any], most: int = POINTS) -> list[Any]:
    """At most `most` of the points, evenly chosen, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]


def without(runs: Sequence[Run], why: str) -> str:
    """The note that says which runs a chart leaves out, and why."""
    if not runs:
        return ""
    names = ", ".join(run.label for run in runs)
    return f"Without {names}: {why}."
