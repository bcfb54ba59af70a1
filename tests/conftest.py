"""What the whole suite shares: the files that pytest collected, deselected or not; a command that is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.cli import main

COLLECTED = pytest.StashKey[set[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COLLECTED] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash[COLLECTED].add(Path(item.path))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call the command with these words, in this process: it must say why not, and exit with 2. What it said."""

    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        assert ended.value.code == 2
        return capsys.readouterr().err.replace("\n", " ")

    return said
