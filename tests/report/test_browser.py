"""The page in a real browser: no complaint on its console, the charts' data, both schemes, a phone's width."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, sync_playwright

from tests.report import made
from thinwire.report import read_runs, write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><img src=x onerror=alert(1)>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("THINWIRE_REQUIRE_BROWSER"),
    reason="no chromium here; install it (apt-get install chromium) to see the report's page in a browser",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "THINWIRE_REQUIRE_BROWSER is set, and no chromium is here; install it"
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        yield opened
        opened.close()


@dataclass
class Seen:
    """An opened page, and all that it complained of or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)

    def data(self, chart: str) -> list[dict[str, Any]]:
        traces: list[dict[str, Any]] = self.page.evaluate(f"document.getElementById('chart-{chart}').data")
        return traces


def opened(browser: Browser, path: Path, **options: Any) -> Seen:
    seen = Seen(browser.new_page(**options))

    def asked(dialog: Dialog) -> None:
        seen.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def requested(request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            seen.asked_for.append(request.url)

    seen.page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.on("dialog", asked)
    seen.page.on("request", requested)
    seen.page.goto(path.as_uri())
    # Not wait_for_function, which evaluates a string again and again: the page's own policy forbids that.
    seen.page.wait_for_selector("html[data-drawn]")
    return seen


def test_the_charts_show_the_runs(browser: Browser, tmp_path: Path) -> None:
    methods = ("exact", "sylvie", "adaqp")
    folders = [made.run(tmp_path / name, method=name, prediction=name == "adaqp") for name in methods]
    write_page(tmp_path / "report.html", read_runs(folders))
    seen = opened(browser, tmp_path / "report.html", viewport={"width": 1280, "height": 900}, color_scheme="light")
    assert [trace["name"] for trace in seen.data("loss-epochs")] == list(methods)
    assert len(seen.data("loss-epochs")[0]["y"]) == 20
    assert {trace["name"] for trace in seen.data("times")} >= {"computation", "codec", "exposed transfer"}
    sent = {(trace["name"], trace["meta"]): trace["x"] for trace in seen.data("bytes")}
    assert sent["sylvie", "sent"][0] == 300_000
    assert seen.data("links-0")[0]["z"][1][0] == 6.0e6
    # A run has the same colour in every chart, and another one in the dark.
    light = seen.data("loss-epochs")[1]["line"]["color"]
    assert light == seen.data("score-seconds")[2]["line"]["color"] == "#d55e00"
    seen.page.click("#scheme")
    assert seen.data("loss-epochs")[1]["line"]["color"] == "#f58549"
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 23)"
    assert seen.asked_for == [(tmp_path / "report.html").as_uri()]
    assert seen.complaints == []
    seen.page.close()


def test_a_phone_in_the_dark(browser: Browser, tmp_path: Path) -> None:
    folder = made.run(
        tmp_path / "a-run-whose-name-is-rather-long-for-a-phone", method="adaqp", ranks=4, prediction=True
    )
    write_page(tmp_path / "report.html", read_runs([folder]))
    seen = opened(browser, tmp_path / "report.html", viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert seen.page.evaluate("document.documentElement.dataset.scheme") == "dark"
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
    too_wide = (
        "[...document.querySelectorAll('.plot .main-svg')].filter((e) => e.getBoundingClientRect().right > 390).length"
    )
    assert seen.page.evaluate(too_wide) == 0
    seen.page.emulate_media(color_scheme="light")
    seen.page.wait_for_selector("html[data-scheme=light]")
    assert seen.data("loss-epochs")[0]["line"]["color"] == "#0072b2"
    assert seen.complaints == []
    seen.page.close()


def test_foreign_strings_are_text(browser: Browser, tmp_path: Path) -> None:
    """In a folder's name, a data set's, a channel's, a method's and an error."""
    folder = made.run(tmp_path / "<b>run<b>", data=HOSTILE, epochs=8, complete=False, error=HOSTILE, prediction=True)
    for name in ("plan.json", "events.jsonl"):
        content = (folder / name).read_text()
        (folder / name).write_text(content.replace("convs.1.forward", HOSTILE).replace('"sylvie"', f'"{HOSTILE}"'))
    write_page(tmp_path / "report.html", read_runs([folder]))
    seen = opened(browser, tmp_path / "report.html")
    assert seen.page.evaluate("document.querySelectorAll('main img, main b b, main script').length") == 0
    text = seen.page.inner_text("main")
    assert text.count(HOSTILE) >= 3
    shown = seen.page.evaluate("[...document.querySelectorAll('#chart-bytes text')].map((e) => e.textContent)")
    assert HOSTILE[:10] in "".join(shown)
    assert "<b>run<b>" in shown
    assert seen.asked_for == [(tmp_path / "report.html").as_uri()]
    assert seen.complaints == []
    seen.page.close()
