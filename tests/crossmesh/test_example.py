"""The examples run and say what they should."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_a_reshard_of_ones_own() -> None:
    example = EXAMPLES / "own_reshard.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("x.grad is right: True") == 2
    assert "rank 3: step 2: 65664 bytes" in done.stdout
    assert len(example.read_text().splitlines()) <= 100


@pytest.mark.slow
def test_a_pipeline_of_ones_own() -> None:
    example = EXAMPLES / "own_pipeline.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "r0 " in done.stdout  # a timeline
    assert len(example.read_text().splitlines()) <= 100
