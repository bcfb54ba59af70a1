"""One self-contained HTML page: style, scripts, plotly and the figures are in the file.

Names may come from untrusted files. As text they are escaped; as data they are in a JSON block without any `<`, which
could end it; and the page's policy allows only its three scripts, by their hashes, and no requests.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from thinwire import __version__, artifacts
from thinwire.report.bits import bits
from thinwire.report.curves import loss, scores
from thinwire.report.figure import COLOURS, Chart, Figure, Section, Table
from thinwire.report.matrix import matrix
from thinwire.report.predicted import predicted
from thinwire.report.prediction import predictions
from thinwire.report.records import Run
from thinwire.report.sent import sent
from thinwire.report.staleness import staleness
from thinwire.report.summary import results, set_up
from thinwire.report.times import times

# In the order of a reader's questions: does it learn, how fast, why, and was that predicted?
SECTIONS = (scores, loss, times, sent, bits, staleness, predicted, predictions, matrix)


def write_page(path: Path, runs: Sequence[Run]) -> None:
    with artifacts.new_file(path) as file:
        file.write(page(runs).encode())


def page(runs: Sequence[Run]) -> str:
    sections = [section(runs) for section in SECTIONS]
    charts = [chart for section in sections for chart in section.charts]
    figures = {chart.name: chart.figure for chart in charts if chart.figure is not None}
    scripts = {"scheme": _text_of("scheme.js"), "plotly": _plotly(), "draw": _text_of("draw.js")}
    return Template(_text_of("page.html")).substitute(
        title=_text("thinwire: " + ", ".join(run.label for run in runs)),
        policy=" ".join(f"'sha256-{_hash(script)}'" for script in scripts.values()),
        style=_text_of("page.css"),
        summary=_summary(runs),
        sections="\n".join(_section(section) for section in sections),
        figures=_json(figures),
        version=_text(__version__),
        **scripts,
    )


def _text_of(name: str) -> str:
    return files("thinwire.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    # Imported here: other commands should not wait for it.
    from plotly.offline import get_plotlyjs

    script = str(get_plotlyjs())
    assert "</script" not in script.lower()
    return script


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(figures: Mapping[str, Figure]) -> str:
    """JSON for a script element, with each `<` escaped: no other character is special there."""
    return json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _text(text: str) -> str:
    return html.escape(text)


def _summary(runs: Sequence[Run]) -> str:
    notices = "".join(_notice(run) for run in runs if run.state.word != "complete")
    return (
        f"{notices}\n<section class='card'><h2>Results</h2>{_table(results(runs), dots=True)}"
        f"<p class='caption'>Scores as last evaluated; the rest are medians, without the first and the last epoch. "
        f"Waiting is rank 0's.</p></section>\n"
        f"<section class='card'><h2>What was run on what</h2>{_table(set_up(runs), wraps=True)}</section>"
    )


def _notice(run: Run) -> str:
    error = f"<pre>{_text(run.state.error)}</pre>" if run.state.error else ""
    sentence = _text(f" {run.state.sentence}.")
    return f"<div class='notice {run.state.word}' role='status'><b>{_text(run.label)}</b>{sentence}{error}</div>"


def _section(section: Section) -> str:
    drawn = [chart for chart in section.charts if chart.figure is not None]
    notes = [chart.note for chart in section.charts if chart.note]
    caption = f"<p class='caption'>{_text(section.caption)}</p>" if drawn else ""
    charts = "".join(_chart(chart) for chart in drawn)
    grid = f"<div class='charts{' pair' if len(drawn) > 1 else ''}'>{charts}</div>" if drawn else ""
    table = _table(section.table) if section.table is not None else ""
    footnotes = "".join(f"<p class='note'>{_text(note)}</p>" for note in dict.fromkeys(notes))
    return f"<section class='card'><h2>{_text(section.title)}</h2>{caption}{grid}{table}{footnotes}</section>"


def _chart(chart: Chart) -> str:
    title = f"<h3>{_text(chart.title)}</h3>" if chart.title else ""
    height = chart.figure["layout"]["height"] if chart.figure is not None else 0
    where = f"id='chart-{chart.name}' data-chart='{chart.name}' class='plot' style='height:{height}px'"
    return f"<figure>{title}<div {where}></div></figure>"


def _table(table: Table, *, dots: bool = False, wraps: bool = False) -> str:
    """`dots`: each row is a run and begins with a dot in its colour. `wraps`: long texts wrap, and a text that all
    columns share is shown once.
    """
    head = "".join(
        f"<th scope='col'{_kind(table, at)}>{_text(heading)}</th>" for at, heading in enumerate(table.headings)
    )
    body = ""
    for number, row in enumerate(table.rows):
        dot = f"<i class='dot run-{number % COLOURS}'></i>" if dots else ""
        cells = "".join(f"<td{_kind(table, at)}>{_text(cell)}</td>" for at, cell in enumerate(row) if at)
        if wraps and len(set(row[1:])) == 1:
            cells = f"<td colspan='{len(row) - 1}' class='text'>{_text(row[1])}</td>"
        body += f"<tr><th scope='row' class='text'>{dot}{_text(row[0])}</th>{cells}</tr>"
    whole = f"<table{' class=wraps' if wraps else ''}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='scroll' tabindex='0'>{whole}</div>"


def _kind(table: Table, column: int) -> str:
    return " class='text'" if column < table.texts else ""
