"""README is short, and the tree that the tour draws is there. (tests/docs runs what they show.)"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_tree_is_there() -> None:
    drawing = (ROOT / "docs" / "tour.md").read_text().split("## The tree")[1].split("```")[1]
    places = re.findall(r"^ *([\w./]+[/y]) ", drawing, flags=re.MULTILINE)
    assert len(places) > 20
    for place in places:
        homes = (ROOT, *(ROOT / "src/thinwire" / folder for folder in ("", "codecs", "crossmesh", "gradients")))
        assert any((home / place).exists() for home in homes), place


def test_cases_and_results_are_indexed() -> None:
    index = (ROOT / "benchmarks" / "README.md").read_text()
    for file in (*(ROOT / "benchmarks/cases").iterdir(), *(ROOT / "benchmarks/results").iterdir()):
        assert f"]({file.parent.name}/{file.name})" in index, f"{file.name} is not in benchmarks/README.md"
