"""The chart of where an epoch's time goes, for each rank."""

from collections.abc import Sequence
from typing import Any

from thinwire.report.figure import Chart, Section, layout, plain, seconds_axis, without
from thinwire.report.panels import panels, suffix
from thinwire.report.records import RankTimes, Run

# The parts that add up to an epoch, and their colours. Hidden transfer has a bar of its own.
PARTS = {"compute_s": "computation", "codec_s": "codec", "exposed_s": "exposed transfer", "rest_s": "the rest"}
COLOURS = {"compute_s": "var(--compute)", "codec_s": "var(--codec)", "exposed_s": "var(--exposed)"}
# A smaller rest is not shown: the clocks of the parts and of the whole are not read at the same moment.
REST_FROM_SHARE = 0.01
ROW_PX = 34


def times(runs: Sequence[Run]) -> Section:
    return Section(
        "Where an epoch's time goes",
        "The thick bar is a rank's epoch: exposed transfer is time that it stood still for others. The thin bar below "
        "is transfer hidden behind that, which costs nothing. Means over the epochs that were looked at so closely.",
        (_times(runs),),
    )


def mean_times(run: Run) -> list[dict[str, float]]:
    """Each rank's mean seconds over the epochs that recorded them, without the first if there are others."""
    looked_at = [epoch for epoch in run.epochs if epoch.ranks]
    if len(looked_at) > 1:
        looked_at = [epoch for epoch in looked_at if epoch.number > 0]
    world = max((len(epoch.ranks) for epoch in looked_at), default=0)
    by_rank = []
    for rank in range(world):
        times = [epoch.ranks[rank] for epoch in looked_at if rank < len(epoch.ranks)]
        means = {name: _mean(times, name) for name in ("seconds", "compute_s", "codec_s", "exposed_s", "hidden_s")}
        rest = means["seconds"] - means["compute_s"] - means["codec_s"] - means["exposed_s"]
        means["rest_s"] = rest if rest > REST_FROM_SHARE * means["seconds"] else 0.0
        by_rank.append(means)
    return by_rank


def _mean(ranks: Sequence[RankTimes], name: str) -> float:
    return sum(getattr(times, name) for times in ranks) / len(ranks)


def _times(runs: Sequence[Run]) -> Chart:
    shown = [(run, means) for run in runs if (means := mean_times(run))]
    note = without([run for run in runs if not mean_times(run)], "no event of theirs has times by rank (`ranks`)")
    if not shown:
        return Chart("times", "", None, note)
    largest = max(max(rank["seconds"], rank["hidden_s"]) for _, means in shown for rank in means)
    across = seconds_axis("seconds of an epoch", largest)
    parts = panels([plain(run.label) for run, _ in shown], [ROW_PX * len(means) + 8 for _, means in shown], across)
    traces: list[dict[str, Any]] = []
    for number, (_, means) in enumerate(shown):
        ranks = list(range(len(means)))
        parts[f"yaxis{suffix(number)}"] |= {
            "tickvals": ranks,
            "ticktext": [f"rank {rank}" for rank in ranks],
            "range": [len(ranks) - 0.4, -0.6],
            "showgrid": False,
            "zeroline": False,
        }
        for name, text in PARTS.items():
            values = [rank[name] for rank in means]
            if any(values):
                traces.append(_bars(number, text, ranks, values, COLOURS.get(name, "var(--rest)")))
        if any(rank["hidden_s"] for rank in means):
            hidden = [rank["hidden_s"] for rank in means]
            traces.append(_bars(number, "hidden transfer", [rank + 0.36 for rank in ranks], hidden, "var(--hidden)"))
            traces[-1]["width"] = 0.16
    in_legend = set()
    for trace in traces:
        trace["showlegend"] = trace["name"] not in in_legend
        in_legend.add(trace["name"])
    return Chart("times", "", {"data": traces, "layout": layout(**parts, barmode="stack")}, note)


def _bars(panel: int, text: str, at: Sequence[float], values: list[float], colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": text,
        "legendgroup": text,
        "y": list(at),
        "x": values,
        "width": 0.5,
        "xaxis": f"x{suffix(panel)}",
        "yaxis": f"y{suffix(panel)}",
        "marker": {"color": colour},
        "hovertemplate": f"{text} %{{x:.3~s}}s",
    }
