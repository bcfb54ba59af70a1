"""The site builds without a broken link, and a browser that shows it asks nobody else for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

# What a browser loads by itself: links that a reader follows are no matter.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//|<link\b[^>]*\bhref=["'](?:https?:)?//"""
    r"""|@import\s+url\(["']?(?:https?:)?//|url\(["']?https?://"""
)


def test_it_builds_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    pages = [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]
    assert len(pages) > 60
    asking = [f"{page.name}: {match.group()}" for page in pages if (match := LOADED.search(page.read_text()))]
    assert asking == []
    reference = (tmp_path / "reference" / "fullgraph.html").read_text()
    assert "distribute" in reference
