"""Matrices of the links between ranks: each one's measured rate, and the bytes that an epoch sent over it."""

from collections.abc import Mapping, Sequence
from typing import Any

from thinwire.report.figure import Chart, Section, axis, layout, without
from thinwire.report.records import Run
from thinwire.report.units import bytes_text, rate_text, seconds_text

CELL_PX, FRAME_PX = 52, 70
# Cells have figures up to this number of ranks: more would not fit on a phone.
FIGURES_UP_TO = 4


def matrix(runs: Sequence[Run]) -> Section:
    charts = []
    for number, run in enumerate(runs):
        if run.facts.links:
            rates = {(link.src, link.dst): link.bytes_per_s for link in run.facts.links}
            hover_texts = {
                (link.src, link.dst): f"{rate_text(link.bytes_per_s)}, latency {seconds_text(link.latency_s)}"
                for link in run.facts.links
            }
            cells = {pair: rate_text(speed).removesuffix("bit/s") for pair, speed in rates.items()}
            charts.append(
                Chart(f"links-{number}", f"{run.label}: measured rate, bit/s", _heat(rates, cells, hover_texts))
            )
        if sizes := mean_bytes(run):
            cells = {pair: bytes_text(size) for pair, size in sizes.items()}
            charts.append(Chart(f"traffic-{number}", f"{run.label}: bytes an epoch", _heat(sizes, cells, cells)))
    missing = [run for run in runs if not run.facts.links]
    note = without(missing, "their wires were not measured (`links` in plan.json)")
    silent = without([run for run in runs if not mean_bytes(run)], "no event of theirs has bytes by peer (`ranks`)")
    if note or silent:
        charts.append(Chart("links", "", None, " ".join(filter(None, (note, silent)))))
    return Section(
        "Links",
        "Rows send, columns receive. A wire slower than the others, or with more to carry, is what all wait for.",
        tuple(charts),
    )


def mean_bytes(run: Run) -> dict[tuple[int, int], float]:
    """Mean bytes an epoch from rank to rank, over the epochs that recorded them, without the first if others did."""
    epochs = [epoch for epoch in run.epochs if any(rank.bytes_to for rank in epoch.ranks)]
    epochs = [epoch for epoch in epochs if epoch.number > 0] or epochs
    total: dict[tuple[int, int], float] = {}
    for epoch in epochs:
        for src, rank in enumerate(epoch.ranks):
            for dst, size in rank.bytes_to.items():
                total[src, dst] = total.get((src, dst), 0.0) + size / len(epochs)
    return total


def _heat(
    values: Mapping[tuple[int, int], float],
    cells: Mapping[tuple[int, int], str],
    hover_texts: Mapping[tuple[int, int], str],
) -> dict[str, Any]:
    ranks = sorted({rank for pair in values for rank in pair})
    pairs = [[(src, dst) for dst in ranks] for src in ranks]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": [f"to {rank}" for rank in ranks],
        "y": [f"from {rank}" for rank in ranks],
        "z": [[values.get(pair) for pair in row] for row in pairs],
        "zmin": 0,
        "zmax": max(values.values()) or 1,
        "colorscale": [[0, "var(--cold)"], [1, "var(--hot)"]],
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "customdata": [[hover_texts.get(pair, "") for pair in row] for row in pairs],
        "hovertemplate": "%{y} %{x}: %{customdata}<extra></extra>",
        "hoverongaps": False,
    }
    if len(ranks) <= FIGURES_UP_TO:
        trace |= {"text": [[cells.get(pair, "") for pair in row] for row in pairs], "texttemplate": "%{text}"}
    across = axis(type="category", side="top", showgrid=False)
    vertical = axis(type="category", autorange="reversed", showgrid=False)
    drawn = layout(FRAME_PX + CELL_PX * len(ranks), xaxis=across, yaxis=vertical)
    return {"data": [trace], "layout": drawn}
