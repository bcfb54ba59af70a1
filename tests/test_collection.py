"""A test that is not collected is a skip that nobody sees."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_every_test_file_is_collected(request: pytest.FixtureRequest) -> None:
    asked_for_all = not request.config.args or [Path(arg).name for arg in request.config.args] == ["tests"]
    if not asked_for_all:
        pytest.skip("only part of the tests was asked for")
    collected = {Path(item.path) for item in request.session.items}
    written = set(HERE.rglob("test_*.py"))
    assert written <= collected, sorted(written - collected)
