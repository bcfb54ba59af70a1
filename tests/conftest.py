"""What the whole suite shares: which files pytest collected, before any test of them was deselected."""

from pathlib import Path

import pytest

COLLECTED = pytest.StashKey[set[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COLLECTED] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash[COLLECTED].add(Path(item.path))
