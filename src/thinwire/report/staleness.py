"""The chart of which epochs computed with rows of the epoch before."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from thinwire.report.figure import Chart, Section, axis, layout, plain, without
from thinwire.report.records import Run

ROW_PX, FRAME_PX = 34, 100
KINDS = {True: ("stale", "var(--stale)"), False: ("synchronous", "var(--fresh)")}


def staleness(runs: Sequence[Run]) -> Section:
    return Section(
        "Staleness",
        "A stale epoch computes with what others sent an epoch before, so that transfers hide behind computation; a "
        "synchronous one waits for what is new.",
        (_chart(runs),),
    )


def stretches(run: Run) -> list[tuple[bool, int, int]]:
    """Stretches of consecutive epochs of one kind: (stale, first epoch, number of epochs)."""
    rows = []
    known = [(epoch.number, epoch.stale) for epoch in run.epochs if epoch.stale is not None]
    # In consecutive epochs, number minus place in the list is constant.
    for (stale, _), group in groupby(enumerate(known), key=lambda item: (item[1][1], item[1][0] - item[0])):
        numbers = [number for _, (number, _) in group]
        rows.append((bool(stale), numbers[0], len(numbers)))
    return rows


def _chart(runs: Sequence[Run]) -> Chart:
    # By the run's place: labels may look alike once they are shortened.
    shown = {place: stretches(run) for place, run in enumerate(runs) if stretches(run)}
    note = without([run for run in runs if not stretches(run)], "no event of theirs says whether it was (`stale`)")
    if not shown:
        return Chart("staleness", "", None, note)
    traces: list[dict[str, Any]] = []
    for stale, (name, colour) in KINDS.items():
        bars = [(place, first, count) for place, rows in shown.items() for kind, first, count in rows if kind == stale]
        if bars:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": [place for place, _, _ in bars],
                    "base": [first + 0.5 for _, first, _ in bars],  # an epoch's bar is about its number, from 1
                    "x": [count for _, _, count in bars],
                    "customdata": [[first + 1, first + count] for _, first, count in bars],
                    "marker": {"color": colour},
                    "width": 0.6,
                    "hovertemplate": f"epochs %{{customdata[0]}} to %{{customdata[1]}}: {name}",
                }
            )
    labels = [plain(runs[place].label) for place in shown]
    vertical = axis(tickmode="array", tickvals=list(shown), ticktext=labels, autorange="reversed", showgrid=False)
    last = max(first + count for rows in shown.values() for _, first, count in rows)
    across = axis("epoch", showgrid=False, zeroline=False, range=[0.5, last + 0.5])
    drawn = layout(FRAME_PX + ROW_PX * len(shown), barmode="overlay", xaxis=across, yaxis=vertical)
    return Chart("staleness", "", {"data": traces, "layout": drawn | {"showlegend": True}}, note)
