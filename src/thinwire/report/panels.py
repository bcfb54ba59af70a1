"""Small charts one above the other, each with a heading, that share a horizontal axis."""

from collections.abc import Sequence
from typing import Any

from thinwire.report.figure import axis

HEADING_PX, GAP_PX, FOOT_PX, LEGEND_PX = 24, 10, 46, 34


def suffix(number: int) -> str:
    """The suffix of an axis's name: plotly's first axis is x, its second x2."""
    return "" if number == 0 else str(number + 1)


def panels(headings: Sequence[str], heights_px: Sequence[int], across: dict[str, Any]) -> dict[str, Any]:
    """Axes, headings and the total height, for a layout. The caller completes the vertical axes."""
    inner = sum(heights_px) + len(heights_px) * HEADING_PX + (len(heights_px) - 1) * GAP_PX
    parts: dict[str, Any] = {"height": inner + FOOT_PX + LEGEND_PX, "annotations": []}
    top = 0
    for number, (heading, height) in enumerate(zip(headings, heights_px, strict=True)):
        top += HEADING_PX
        domain = [max(0.0, 1 - (top + height) / inner), 1 - top / inner]
        last = number == len(headings) - 1
        # All horizontal axes follow the first one; only the last shows its ticks.
        tied = {} if number == 0 else {"matches": "x"}
        shown = {} if last else {"showticklabels": False, "title": {"text": ""}}
        parts[f"xaxis{suffix(number)}"] = {**across, "anchor": f"y{suffix(number)}", **tied, **shown}
        parts[f"yaxis{suffix(number)}"] = axis(domain=domain, anchor=f"x{suffix(number)}")
        parts["annotations"].append(
            {
                "text": heading,
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": domain[1],
                "xanchor": "left",
                "yanchor": "bottom",
                "yshift": 2,
                "font": {"size": 13},
            }
        )
        top += height + GAP_PX
    return parts
