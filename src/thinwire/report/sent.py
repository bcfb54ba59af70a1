"""The chart of bytes by channel, that is by layer and direction, beside float32."""

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
    """Mean bytes an epoch, by channel and in total. An epoch in which a channel sent nothing counts as 0."""
    means = {}
    total = [epoch for epoch in run.steady if epoch.bytes is not None]
    if total:
        thick = [epoch.float32_bytes for epoch in total if epoch.float32_bytes is not None]
        sent_bytes = sum(epoch.bytes or 0.0 for epoch in total) / len(total)
        means[ALL] = Traffic(sent_bytes, sum(thick) / len(thick) if thick else None)
    epochs = [epoch for epoch in run.steady if epoch.channels]
    for name in dict.fromkeys(name for epoch in epochs for name in epoch.channels):
        sent = [epoch.channels[name] for epoch in epochs if name in epoch.channels]
        thin_bytes = sum(traffic.bytes for traffic in sent) / len(epochs)
        thick_bytes = sum(traffic.float32_bytes or 0.0 for traffic in sent) / len(epochs)
        known = all(traffic.float32_bytes is not None for traffic in sent)
        means[name] = Traffic(thin_bytes, thick_bytes if known else None)
    return {name: traffic for name, traffic in means.items() if traffic.bytes or traffic.float32_bytes}


def _sent(runs: Sequence[Run]) -> Chart:
    means = [mean_traffic(run) for run in runs]
    silent = [run for run, channels in zip(runs, means, strict=True) if not channels]
    totals = [run for run, channels in zip(runs, means, strict=True) if set(channels) == {ALL}]
    notes = [without(silent, "nothing was sent, or no event says so")]
    notes.append(f"In all only, for {', '.join(run.label for run in totals)}: no `channels`." if totals else "")
    note = " ".join(filter(None, notes))
    if len(silent) == len(runs):
        return Chart("bytes", "", None, note)
    names = list(dict.fromkeys(name for channels in means for name in channels))
    longest = max(max(sent.bytes, sent.float32_bytes or 0.0) for channels in means for sent in channels.values())
    traces = []
    for number, (run, channels) in enumerate(zip(runs, means, strict=True)):
        if channels:
            traces += [_bars(run, number, channels, names, longest, thick=thick) for thick in (True, False)]
    height = FRAME_PX + len(names) * (GAP_PX + BAR_PX * (len(runs) - len(silent)))
    vertical = axis(type="category", autorange="reversed", showgrid=False)
    drawn = layout(height, barmode="group", bargap=0.25, xaxis=bytes_axis("bytes an epoch"), yaxis=vertical)
    return Chart("bytes", "", {"data": traces, "layout": drawn | {"showlegend": True}}, note)


def _bars(
    run: Run, number: int, channels: dict[str, Traffic], names: list[str], longest: float, *, thick: bool
) -> dict[str, Any]:
    """Bars of one run: float32 (`thick`) or sent. Both lie on one another, as they share an offset group."""
    shown = [name for name in names if name in channels]
    values = [channels[name].float32_bytes if thick else channels[name].bytes for name in shown]
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
        # Text is beside its bar, but inside long bars, which leave no room.
        trace |= {
            "text": [_thinner(channels[name]) for name in shown],
            "textposition": ["inside" if channels[name].bytes > LONG_SHARE * longest else "outside" for name in shown],
            "cliponaxis": False,
        }
    return trace


def _thinner(traffic: Traffic) -> str:
    if not traffic.float32_bytes or not traffic.bytes or traffic.float32_bytes < 1.05 * traffic.bytes:
        return bytes_text(traffic.bytes)
    return f"{bytes_text(traffic.bytes)}, {traffic.float32_bytes / traffic.bytes:.1f}x"
