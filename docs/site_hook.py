"""What the site shows beside docs/: README as its first page, other pages and scripts of the repository, result files.

Pages keep the links that work in the repository (`../examples/own_model.py`); here they are led to where the site has
the same file. What is linked and has no place in the site is a broken link, and the build is strict.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "benchmarks/README.md": "benchmarks/index.md",
}
FOLDERS = {"benchmarks/cases": "benchmarks/index.md", "benchmarks/results": "benchmarks/index.md"}
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
DECISIONS = "DECISIONS"  # in nav: stands for all of docs/decisions


def on_config(config: MkDocsConfig) -> None:
    names = [f"decisions/{path.name}" for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    project = next(part["Project"] for part in config.nav if "Project" in part)
    project[-1] = {"Decisions": names}


def on_files(files: Files, config: MkDocsConfig) -> None:
    for source, place in places().items():
        path = ROOT / source
        if path.suffix == ".json":
            files.append(File.generated(config, place, abs_src_path=str(path)))
        elif path.suffix == ".md":
            files.append(File.generated(config, place, content=path.read_text()))
        else:
            text = f"# {path.name}\n\n```{path.suffix[1:].replace('py', 'python')}\n{path.read_text()}```\n"
            files.append(File.generated(config, place, content=text))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The same links, from where the site has this page to where it has what they lead to."""
    here = page.file.src_uri
    known = places()
    source = next((source for source, place in known.items() if place == here), f"docs/{here}")

    def led(match: re.Match[str]) -> str:
        before, target, anchor = match.groups()
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = known.get(whole) or FOLDERS.get(whole)
        if place is None and whole.startswith("docs/"):
            place = whole.removeprefix("docs/")
        if place is None:
            return match.group()
        return f"{before}{posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor or ''}"

    return LINK.sub(led, markdown)


def places() -> dict[str, str]:
    """Where the site has the files of the repository that are not in docs/."""
    shown = dict(PAGES)
    for path in sorted((ROOT / "examples").glob("*.py")):
        shown[f"examples/{path.name}"] = f"examples/{path.stem}.md"
    for path in sorted((ROOT / "benchmarks/cases").glob("*.toml")):
        shown[f"benchmarks/cases/{path.name}"] = f"benchmarks/cases/{path.stem}.md"
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        shown[f"benchmarks/results/{path.name}"] = f"benchmarks/results/{path.name}"
    return shown
