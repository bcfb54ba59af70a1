"""What the README shows must run, and the tree it draws must be there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 12
    exec(compile(example, "README.md", "exec"), {})


def test_the_tree_is_there() -> None:
    drawing = README.split("## The tree")[1]
    for place in re.findall(r"^    (?:  )?(?:  )?(\w[\w./]*[/y]) ", drawing, flags=re.MULTILINE):
        homes = (ROOT, *(ROOT / "src/thinwire" / folder for folder in ("", "codecs", "crossmesh", "gradients")))
        assert any((home / place).exists() for home in homes), place
