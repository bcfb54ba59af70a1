"""The site builds without a broken link, a browser that shows it asks nobody else for anything, and what packages offer
is in the reference.
"""

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

# What a browser loads by itself: links that a reader follows are no matter.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//|<link\b[^>]*\bhref=["'](?:https?:)?//"""
    r"""|@import\s+url\(["']?(?:https?:)?//|url\(["']?https?://"""
)


PACKAGES = sorted(path.stem for path in (ROOT / "docs" / "reference").glob("*.md") if path.stem != "index")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_needs_no_network(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 60
    asking = [f"{page.name}: {match.group()}" for page in pages if (match := LOADED.search(page.read_text()))]
    assert asking == []


@pytest.mark.parametrize("name", PACKAGES)
def test_the_reference_has_what_a_package_offers(name: str, site: Path) -> None:
    (package,) = re.findall(r"(?m)^::: (.+)$", (ROOT / "docs" / "reference" / f"{name}.md").read_text())
    page = (site / "reference" / f"{name}.html").read_text()
    for offered in importlib.import_module(package).__all__:
        thing = getattr(importlib.import_module(package), offered)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            assert f'id="{package}.{offered}"' in page, f"{package}.{offered}: has it a docstring?"
