"""The page as text: whole, by itself, and with every foreign string as a string."""

import html
import json
import re
from pathlib import Path

from tests.report import made
from thinwire.report import read_runs, write_page
from thinwire.report.page import page

HOSTILE = "</script><img src=x onerror=alert(1)><b>&amp;\"'$title"


def figures(text: str) -> dict[str, object]:
    (figures,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, flags=re.DOTALL)
    return dict(json.loads(figures))


def test_nothing_is_fetched(tmp_path: Path) -> None:
    text = page(read_runs([made.run(tmp_path / "run", method="adaqp", prediction=True)]))
    without_plotly = text.replace(re.findall(r"<script>/\*\*\n\* plotly.*?</script>", text, flags=re.DOTALL)[0], "")
    assert "http://" not in without_plotly
    assert "https://" not in without_plotly
    assert "default-src 'none'" in without_plotly
    assert len(without_plotly) < 200_000 < 4_000_000 < len(text)  # plotly once
    names = re.findall(r"id='chart-([\w-]+)' data-chart='([\w-]+)'", text)
    assert [name for name, _ in names] == [name for _, name in names] == list(figures(text))


def test_foreign_strings_stay_strings(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", data=HOSTILE, epochs=3, complete=False, error=HOSTILE, prediction=True)
    lines = (folder / "events.jsonl").read_text().replace("convs.1.forward", "</script><i>")
    (folder / "events.jsonl").write_text(lines)
    text = page(read_runs([folder]))
    assert "<img" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert text.count(html.escape(HOSTILE)) == 2
    assert text.count("</script>") == 4
    assert "&lt;/script&gt;&lt;i&gt;" in json.dumps(figures(text)["bytes"])


def test_an_unfinished_run_is_announced(tmp_path: Path) -> None:
    cut = made.run(tmp_path / "cut", epochs=7, asked=50, complete=False, tail='{"epoch": 7, "lo')
    bad = made.run(tmp_path / "bad", epochs=2, asked=50, complete=False, error="rank 1 silent for 60 s")
    write_page(tmp_path / "report.html", read_runs([cut, bad]))
    text = (tmp_path / "report.html").read_text()
    assert "<b>cut</b> stopped after epoch 7 of 50, or is still running; the last line was cut off; --resume" in text
    assert "<b>bad</b> stopped after epoch 2 of 50.<pre>rank 1 silent for 60 s</pre>" in text
