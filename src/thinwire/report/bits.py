"""The chart of rows by number of bits, for each channel and re-assignment."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from thinwire.report.figure import Chart, Section, axis, layout, plain, without
from thinwire.report.panels import panels, suffix
from thinwire.report.records import Run

# Numbers of bits that the page's style has colours for; others share one colour.
KNOWN = (0, 1, 2, 4, 8, 16, 32)
PANEL_PX = 84


def bits(runs: Sequence[Run]) -> Section:
    assigned = [
        (number, run) for number, run in enumerate(runs) if any(assignment.messages for assignment in run.assignments)
    ]
    rest = [run for run in runs if not any(assignment.messages for assignment in run.assignments)]
    note = without(rest, "bits were not assigned while they ran (no plan.1.json)")
    charts = [_chart(number, run) for number, run in assigned] or [Chart("bits", "", None, note)]
    if assigned and note:
        charts.append(Chart("bits", "", None, note))
    return Section(
        "Bits by re-assignment",
        "Share of rows at each number of bits, from the epoch on in which they were assigned. 0 bits: not sent, the "
        "receiver keeps its copy.",
        tuple(charts),
    )


def shares(rows_at_bits: Mapping[int, float]) -> dict[int, float]:
    total = sum(rows_at_bits.values())
    return {width: rows / total for width, rows in rows_at_bits.items()} if total else {}


def _chart(number: int, run: Run) -> Chart:
    names = list(dict.fromkeys(message.channel for assignment in run.assignments for message in assignment.messages))
    widths = sorted(
        {bits for assignment in run.assignments for message in assignment.messages for bits in message.rows_at_bits}
    )
    # Epochs as categories: on a numeric axis, re-assignments far apart would have thin bars.
    at = [str(assignment.from_epoch + 1) for assignment in run.assignments]
    across = axis("assigned in epoch", type="category", showgrid=False)
    rows = {"all channels": [_rows(run, index, names) for index in range(len(at))]}
    rows |= {name: [_rows(run, index, [name]) for index in range(len(at))] for name in names}
    parts = panels([plain(name) for name in rows], [PANEL_PX] * len(rows), across)
    traces: list[dict[str, Any]] = []
    for panel, counts in enumerate(rows.values()):
        parts[f"yaxis{suffix(panel)}"] |= {"range": [0, 1], "tickformat": ".0%", "tickvals": [0, 0.5, 1]}
        of_rows = [shares(rows) for rows in counts]
        traces += [
            {
                "type": "bar",
                "name": f"{width} bits" if width != 1 else "1 bit",
                "legendgroup": str(width),
                "showlegend": panel == 0,
                "x": at,
                "y": [share.get(width, 0.0) for share in of_rows],
                "customdata": [rows.get(width, 0) for rows in counts],
                "xaxis": f"x{suffix(panel)}",
                "yaxis": f"y{suffix(panel)}",
                "marker": {"color": f"var(--bits-{width})" if width in KNOWN else "var(--bits-other)"},
                "hovertemplate": f"{width} bits: %{{y:.1%}}, %{{customdata:,}} rows",
            }
            for width in widths
        ]
    return Chart(f"bits-{number}", run.label, {"data": traces, "layout": layout(**parts, barmode="stack", bargap=0.15)})


def _rows(run: Run, index: int, channels: Sequence[str]) -> Counter[int]:
    total: Counter[int] = Counter()
    for message in run.assignments[index].messages:
        if message.channel in channels:
            total.update({width: int(rows) for width, rows in message.rows_at_bits.items()})
    return total
