"""Charts of the prediction for every method, beside measurements of those that were run, and at other link rates."""

from collections.abc import Sequence
from typing import Any

from thinwire.report.figure import Chart, Section, axis, colour, layout, log_axis, plain, seconds_axis, without
from thinwire.report.records import Prediction, Run
from thinwire.report.units import seconds_text


def predictions(runs: Sequence[Run]) -> Section:
    """Each method's predicted time, and the measured time of those that were run."""
    planned = [(number, run, run.prediction) for number, run in enumerate(runs) if run.prediction is not None]
    charts = []
    for number, run, prediction in planned:
        if prediction.rows:
            charts.append(_methods(runs, number, run, prediction))
        if prediction.rates:
            charts.append(_rates(runs, number, run, prediction))
    note = without([run for run in runs if run.prediction is None], "they were not planned with `thinwire train auto`")
    if note:
        charts.append(Chart("prediction", "", None, note))
    return Section(
        "Prediction of all methods",
        "Bars: predicted seconds an epoch. Diamonds: the median of runs shown here by that method, on the same data "
        "and as many ranks.",
        tuple(charts),
    )


def _methods(runs: Sequence[Run], number: int, run: Run, prediction: Prediction) -> Chart:
    names = [plain(row.method) for row in prediction.rows]
    recommended = [row.method == prediction.recommended for row in prediction.rows]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "predicted",
            "x": names,
            "y": [row.epoch_s for row in prediction.rows],
            "marker": {"color": ["var(--chosen)" if chosen else "var(--rest)" for chosen in recommended]},
            "text": [seconds_text(row.epoch_s) for row in prediction.rows],
            "textposition": "inside",
            "insidetextanchor": "start",
            "textangle": 0,
            "hovertemplate": "predicted %{y:.3~s}s",
        }
    ]
    for other_number, other in enumerate(runs):
        seconds = other.median("seconds")
        if seconds and other.predicted_as in [row.method for row in prediction.rows] and _alike(run, other):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"{plain(other.label)}, measured",
                    "x": [plain(other.predicted_as)],
                    "y": [seconds],
                    "marker": {
                        "color": colour(other_number),
                        "size": 13,
                        "symbol": "diamond",
                        "line": {"color": "var(--card)", "width": 2},
                    },
                    "hovertemplate": "measured %{y:.3~s}s",
                }
            )
    largest = max(value for trace in traces for value in trace["y"])
    across = axis(type="category", showgrid=False)
    drawn = layout(xaxis=across, yaxis=seconds_axis("seconds an epoch", largest), showlegend=True)
    title = f"{run.label}: {prediction.recommended} was recommended" if prediction.recommended else run.label
    return Chart(f"prediction-{number}", title, {"data": traces, "layout": drawn})


def _alike(run: Run, other: Run) -> bool:
    return (run.facts.data, run.facts.world_size) == (other.facts.data, other.facts.world_size)


def _rates(runs: Sequence[Run], number: int, run: Run, prediction: Prediction) -> Chart:
    methods = list(dict.fromkeys(method for rate in prediction.rates for method in rate.epoch_s))
    traces = []
    for place, method in enumerate(methods):
        points = sorted((rate.bits_per_s, rate.epoch_s[method]) for rate in prediction.rates if method in rate.epoch_s)
        # The colour of the run that used this method, or if there is none, a colour that no run has.
        owners = [place for place, other in enumerate(runs) if other.predicted_as == method and _alike(run, other)]
        style = {"color": colour(owners[0] if owners else len(runs) + place), "width": 2}
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(method),
                "x": [speed for speed, _ in points],
                "y": [seconds for _, seconds in points],
                "line": style | {"dash": "solid" if owners else ("dash", "dot", "dashdot")[place % 3]},
                "marker": {"size": 6},
                "hovertemplate": "%{y:.3~s}s at %{x:.3~s}bit/s",
            }
        )
    across = axis("rate of each link", type="log", tickformat="~s", ticksuffix="bit/s", dtick=1)
    all_seconds = [seconds for rate in prediction.rates for seconds in rate.epoch_s.values()]
    vertical = log_axis("seconds an epoch", all_seconds, _tick)
    drawn = layout(xaxis=across, yaxis=vertical, showlegend=True)
    return Chart(f"rates-{number}", f"{run.label}: on other links", {"data": traces, "layout": drawn})


def _tick(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"
