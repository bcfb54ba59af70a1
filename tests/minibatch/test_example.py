"""The example runs, and the documentation shows the same loop."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "own_loop.py"


def test_a_loop_of_ones_own_learns_with_ddp() -> None:
    found = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    first, second = map(float, re.findall(r"\d+\.\d+", found.stdout))
    assert max(first, second) < 1.5  # of 12 classes: 2.5 by guessing


def test_the_documentation_shows_the_same() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "minibatch.md").read_text(), flags=re.DOTALL)
    body = shown[shown.index("class Net") :].strip()
    assert body in EXAMPLE.read_text()
    assert len(EXAMPLE.read_text().splitlines()) <= 100
