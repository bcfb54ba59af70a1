"""Bytes by channel, and so by layer and direction, against float32."""

from collections.abc import Sequence
from typing import Any

from thinwire.report.figure import Chart, Section, axis, bytes_axis, colour, layout, plain, without
from thinwire.report.records import Run, Traffic
from thinwire.report.units import bytes_text

ALL = "all channels"
BAR_PX, GAP_PX, FRAME_PX = 20, 14, 110
LONG_SHARE = 0.6


def sent(runs: Sequence[Run]) -> Section:
    return Section(
        "Bytes on the wire",
        "Solid: what an epoch sent, over all ranks. Pale, behind it: the same messages in float32, so many times (x) "
        "as thick. Means over the epochs, without the first, which may fetch what later ones have.",
        (_sent(runs),),
    )


def mean_traffic(run: Run) -> dict[str, Traffic]:
    """By channel, and in all. A channel that was silent in an epoch counts as nothing there."""
    found = {}
    total = [epoch for epoch in run.steady if epoch.bytes is not None]
    if total:
        thick = [epoch.float32_bytes for epoch in total if epoch.float32_bytes is not None]
        means = sum(epoch.bytes or 0.0 for epoch in total) / len(total), sum(thick) / len(thick) if thick else None
        found[ALL] = Traffic(*means)
    epochs = [epoch for epoch in run.steady if epoch.channels]
    for name in dict.fromkeys(name for epoch in epochs for name in epoch.channels):
        own = [epoch.channels[name] for epoch in epochs if name in epoch.channels]
        known = all(each.float32_bytes is not None for each in own)
        thick_sum = sum(each.float32_bytes or 0.0 for each in own)
        found[name] = Traffic(sum(each.bytes for each in own) / len(epochs), thick_sum / len(epochs) if known else None)
    return {name: each for name, each in found.items() if each.bytes or each.float32_bytes}


def _sent(runs: Sequence[Run]) -> Chart:
    traffic = [mean_traffic(run) for run in runs]
    silent = [run for run, own in zip(runs, traffic, strict=True) if not own]
    totals = [run for run, own in zip(runs, traffic, strict=True) if set(own) == {ALL}]
    notes = [without(silent, "nothing was sent, or no event says so")]
    notes.append(f"In all only, for {', '.join(run.label for run in totals)}: no `channels`." if totals else "")
    note = " ".join(each for each in notes if each)
    if len(silent) == len(runs):
        return Chart("bytes", "", None, note)
    channels = list(dict.fromkeys(name for own in traffic for name in own))
    longest = max(max(each.bytes, each.float32_bytes or 0.0) for own in traffic for each in own.values())
    traces = []
    for number, (run, own) in enumerate(zip(runs, traffic, strict=True)):
        if own:
            traces += [_bars(run, number, own, channels, longest, thick=thick) for thick in (True, False)]
    height = FRAME_PX + len(channels) * (GAP_PX + BAR_PX * (len(runs) - len(silent)))
    vertical = axis(type="category", autorange="reversed", showgrid=False)
    drawn = layout(height, barmode="group", bargap=0.25, xaxis=bytes_axis("bytes an epoch"), yaxis=vertical)
    return Chart("bytes", "", {"data": traces, "layout": drawn | {"showlegend": True}}, note)


def _bars(
    run: Run, number: int, own: dict[str, Traffic], channels: list[str], longest: float, *, thick: bool
) -> dict[str, Any]:
    """Both kinds of a run lie on one another, as they have an offset group in common."""
    shown = [name for name in channels if name in own]
    values = [own[name].float32_bytes if thick else own[name].bytes for name in shown]
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": plain(run.label),
        "legendgroup": str(number),
        "offsetgroup": str(number),
        "showlegend": not thick,
        "y": [plain(name) for name in shown],
        "x": values,
        "marker": {"color": colour(number)},
        "opacity": 0.22 if thick else 1,
        "hovertemplate": "float32 %{x:.4~s}B" if thick else "sent %{x:.4~s}B",
        "meta": "float32" if thick else "sent",
    }
    if not thick:
        # Beside its bar, but for the longest, which leave no room there.
        trace |= {
            "text": [_thinner(own[name]) for name in shown],
            "textposition": ["inside" if own[name].bytes > LONG_SHARE * longest else "outside" for name in shown],
            "cliponaxis": False,
        }
    return trace


def _thinner(traffic: Traffic) -> str:
    if not traffic.float32_bytes or not traffic.bytes or traffic.float32_bytes < 1.05 * traffic.bytes:
        return bytes_text(traffic.bytes)
    return f"{bytes_text(traffic.bytes)}, {traffic.float32_bytes / traffic.bytes:.1f}x"
