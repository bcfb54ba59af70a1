"""A test that is not collected is a skip that nobody sees."""

from pathlib import Path

import pytest

from tests.conftest import COLLECTED

HERE = Path(__file__).parent


def test_every_test_file_is_collected(request: pytest.FixtureRequest) -> None:
    asked_for_all = not request.config.args or [Path(arg).name for arg in request.config.args] == ["tests"]
    if not asked_for_all:
        pytest.skip("only part of the tests was asked for")
    written = set(HERE.rglob("test_*.py"))
    collected = request.config.stash[COLLECTED]
    missing = written - collected
    assert not missing, sorted(missing)
