"""The figures in the charts are those of the files, and plotly knows every word of the charts."""

import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.report import made
from thinwire.report import Run, read_runs
from thinwire.report.bits import bits
from thinwire.report.curves import loss, scores
from thinwire.report.figure import log_axis, plain, thinned
from thinwire.report.matrix import matrix
from thinwire.report.page import SECTIONS
from thinwire.report.predicted import comparison, predicted
from thinwire.report.prediction import predictions
from thinwire.report.sent import sent
from thinwire.report.staleness import staleness, stretches
from thinwire.report.summary import results, summary
from thinwire.report.times import mean_times, times
from thinwire.report.units import bytes_text, rate_text, seconds_text


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    methods = ("exact", "sylvie", "adaqp")
    return read_runs([made.run(tmp_path / name, method=name, prediction=name == "adaqp") for name in methods])


def traces(section: Any, number: int = 0) -> list[dict[str, Any]]:
    return list(section.charts[number].figure["data"])


def test_plotly_knows_every_property(runs: list[Run]) -> None:
    charts = [chart for section in SECTIONS for chart in section(runs).charts if chart.figure is not None]
    assert len({chart.name for chart in charts}) == len(charts) > 12
    for chart in charts:
        go.Figure(json.loads(re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps(chart.figure))))


def test_without_data_a_line_says_why(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"epoch": 0}\n')
    runs = read_runs([tmp_path])
    for section in SECTIONS:
        charts = section(runs).charts
        assert all(chart.figure is None for chart in charts)
        assert all(chart.note.startswith(f"Without {tmp_path.name}: ") for chart in charts), section


def test_scores_hold_until_the_next_evaluation(runs: list[Run]) -> None:
    by_epoch, by_seconds = traces(scores(runs)), traces(scores(runs), 1)
    assert [trace["name"] for trace in by_epoch] == ["exact", "exact", "sylvie", "sylvie", "adaqp", "adaqp"]
    assert by_epoch[0]["x"] == [5, 10, 15, 20]
    assert by_epoch[0]["line"]["shape"] == "hv"
    assert by_seconds[0]["x"] == pytest.approx([0.1 + 0.4 * epochs for epochs in (5, 10, 15, 20)])
    assert by_epoch[0]["y"] == by_seconds[0]["y"]
    assert {trace["line"]["color"] for trace in by_epoch[2:4]} == {"var(--run-1)"}
    assert [trace["showlegend"] for trace in by_epoch] == [True, False] * 3


def test_a_run_without_test_nodes_is_in_the_legend_by_its_other_score(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", method="exact")
    lines = [json.loads(line) | {"test_score": None} for line in (folder / "events.jsonl").read_text().splitlines()]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [trace["showlegend"] for trace in traces(scores(read_runs([folder])))] == [True]


def test_loss_against_epochs_and_seconds(runs: list[Run]) -> None:
    by_epoch, by_seconds = traces(loss(runs)), traces(loss(runs), 1)
    assert by_epoch[1]["x"] == list(range(1, 21))
    assert by_epoch[1]["y"] == [epoch.loss for epoch in runs[1].epochs]
    assert by_seconds[1]["x"][-1] == pytest.approx(20 * 0.2 + 0.1)


def test_time_adds_up_to_the_epoch(runs: list[Run]) -> None:
    means = mean_times(runs[1])
    assert [mean["exposed_s"] for mean in means] == pytest.approx([0.05, 0.025])
    for mean in means:
        assert mean["compute_s"] + mean["codec_s"] + mean["exposed_s"] + mean["rest_s"] == pytest.approx(0.2)
    drawn = {trace["name"]: trace for trace in traces(times(runs)) if trace["yaxis"] == "y2"}
    assert drawn["exposed transfer"]["x"] == pytest.approx([0.05, 0.025])
    # On a line of its own, so that it is not taken for a part of the epoch.
    assert not set(drawn["hidden transfer"]["y"]) & set(drawn["computation"]["y"])
    assert "the rest" not in drawn


def test_bytes_by_channel_against_float32(runs: list[Run]) -> None:
    drawn = {(trace["name"], trace["meta"]): trace for trace in traces(sent(runs))}
    assert drawn["sylvie", "sent"]["y"] == ["all channels", *made.CHANNELS, "gradients"]
    assert drawn["sylvie", "sent"]["x"] == [300_000, *[25_000] * 4, 200_000]
    assert drawn["sylvie", "float32"]["x"] == [1_800_000, *[400_000] * 4, None]
    assert drawn["sylvie", "sent"]["text"][1] == "25.0 kB, 16.0x"
    assert drawn["sylvie", "sent"]["offsetgroup"] == drawn["sylvie", "float32"]["offsetgroup"]


def test_bits_are_shares_of_rows(runs: list[Run]) -> None:
    (chart, note) = bits(runs).charts
    assert chart.name == "bits-2"
    assert chart.figure is not None
    assert note.note == "Without exact, sylvie: bits were not assigned while they ran (no plan.1.json)."
    overall = [trace for trace in chart.figure["data"] if trace["yaxis"] == "y"]
    assert [trace["name"] for trace in overall] == ["0 bits", "2 bits", "8 bits"]
    assert overall[0]["x"] == ["6", "11", "16"]
    assert overall[1]["y"] == pytest.approx([0.18, 0.36, 0.54])
    assert overall[1]["customdata"] == [72, 144, 216]
    assert [sum(column) for column in zip(*(trace["y"] for trace in overall), strict=True)] == pytest.approx([1] * 3)


def test_staleness_in_stretches(runs: list[Run]) -> None:
    assert stretches(runs[1]) == [(False, 0, 1), (True, 1, 9), (False, 10, 1), (True, 11, 9)]
    assert stretches(runs[0]) == [(False, 0, 20)]
    stale = next(trace for trace in traces(staleness(runs)) if trace["name"] == "stale")
    assert (stale["y"], stale["base"], stale["x"]) == ([1, 1], [1.5, 11.5], [9, 9])


def test_runs_whose_labels_look_alike_keep_a_bar_each(tmp_path: Path) -> None:
    names = [f"wordnet-sylvie-with-a-learning-rate-of-{rate}-and-the-seed-0" for rate in (1, 5)]
    alike = read_runs([made.run(tmp_path / name) for name in names])
    stale = next(trace for trace in traces(staleness(alike)) if trace["name"] == "stale")
    assert stale["y"] == [0, 0, 1, 1]


def test_predicted_beside_measured(runs: list[Run]) -> None:
    drawn = {trace["meta"]: trace for trace in traces(predicted(runs))}
    assert drawn["measured"]["y"][1:] == [0.2] * 19
    assert set(drawn["predicted"]["y"]) == {None, 0.19}
    table = comparison(runs)
    assert table is not None
    assert ("adaqp", "seconds an epoch", "190 ms", "200 ms", "-5%") in table.rows
    assert ("adaqp", "halo bytes an epoch", "400 kB", "400 kB", "0%") in table.rows
    assert ("adaqp", "seconds an epoch, planned", "180 ms", "200 ms", "-10%") in table.rows


def test_a_synchronous_run_is_compared_with_its_own_row(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", method="sylvie", prediction=True)
    plan = json.loads((folder / "plan.json").read_text())
    plan["method"] = "sylvie --staleness 0"
    row = {"epoch_s": 0.25, "bytes_per_epoch": 1, "memory_bytes": 1, "speedup": 1, "model": "replay"}
    plan["prediction"]["rows"].append({"method": "sylvie --staleness 0", **row})
    (folder / "plan.json").write_text(json.dumps(plan))
    table = comparison(read_runs([folder]))
    assert table is not None
    assert [row[2] for row in table.rows if row[1] == "seconds an epoch, planned"] == ["250 ms"]


def test_prediction_beside_all_runs_that_are_alike(runs: list[Run]) -> None:
    predicted_bars, *measured = traces(predictions(runs))
    assert predicted_bars["y"] == [0.42, 0.22, 0.18]
    assert [(trace["x"], trace["y"]) for trace in measured] == [
        (["exact"], [0.4]),
        (["sylvie"], [0.2]),
        (["adaqp"], [0.2]),
    ]
    rates = {trace["name"]: trace for trace in traces(predictions(runs), 1)}
    assert rates["exact"]["x"] == [1e7, 1e8, 1e9, 1e10]
    assert rates["exact"]["y"][0] == pytest.approx(3.1)


def test_links_and_traffic_are_matrices(runs: list[Run]) -> None:
    rate, traffic = (chart.figure for chart in matrix(runs).charts[:2])
    assert rate is not None
    assert traffic is not None
    assert rate["data"][0]["z"] == [[None, 11.9e6], [6.0e6, None]]
    assert rate["data"][0]["text"] == [["", "95.2 M"], ["48.0 M", ""]]
    assert traffic["data"][0]["z"] == [[None, 1000], [2000, None]]


def test_summary_has_the_names_of_train(runs: list[Run]) -> None:
    facts = summary(runs[1])
    assert facts["bytes_per_epoch"] == 300_000
    assert facts["float32_bytes_per_epoch"] == 1_800_000
    assert facts["epoch_s_median"] == 0.2
    assert (facts["workers"], facts["seed"], facts["epochs"], facts["epochs_done"]) == (2, 7, 20, 20)
    assert results(runs).rows[1][-1] == "6.0x"


def test_text_for_plotly_is_no_markup_and_not_long() -> None:
    assert plain("<b>x</b> & y") == "&lt;b&gt;x&lt;/b&gt; &amp; y"
    assert plain("abcdefghij", 6) == "abc…ij"
    assert len(plain("x" * 100)) == 26


def test_units() -> None:
    assert [bytes_text(size) for size in (0, 7, 999.6, 999_600, 1.5e9, None)] == [
        "0 B",
        "7.00 B",
        "1.00 kB",
        "1.00 MB",
        "1.50 GB",
        "-",
    ]
    assert [seconds_text(seconds) for seconds in (0.0, 1e-5, 0.25, 75, 1234.5)] == [
        "0 s",
        "10.0 us",
        "250 ms",
        "75.0 s",
        "1,234 s",
    ]
    assert rate_text(12.5e6) == "100 Mbit/s"


def test_long_lines_are_thinned_to_their_ends() -> None:
    assert thinned(range(5)) == [0, 1, 2, 3, 4]
    few = thinned(range(100_000), 50)
    assert (len(few), few[0], few[-1]) == (50, 0, 99_999)


@pytest.mark.parametrize("values", [[0.05, 2.5], [1.0], [3.0, 3.1], [1e-6, 1e6]])
def test_a_log_axis_has_ticks(values: list[float]) -> None:
    drawn = log_axis("", values, str)
    assert 1 <= len(drawn["tickvals"]) <= 14
    assert len(drawn["tickvals"]) == len(drawn["ticktext"])
