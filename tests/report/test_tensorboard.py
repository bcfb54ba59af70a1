"""Scalars as TensorBoard itself reads them back."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.report import made
from thinwire.report import read_runs, tensorboard


def test_scalars_come_back(tmp_path: Path) -> None:
    runs = read_runs([made.run(tmp_path / name, method=name) for name in ("sylvie", "adaqp")])
    boards = tmp_path / "boards"
    for _ in range(2):  # a second report replaces the first
        tensorboard.check(boards, runs)
        tensorboard.write_scalars(boards, runs)
    assert sorted(path.name for path in boards.iterdir()) == ["adaqp", "sylvie"]
    assert len(list((boards / "adaqp").iterdir())) == 1
    board = EventAccumulator(str(boards / "adaqp")).Reload()
    assert set(board.Tags()["scalars"]) == set(tensorboard.TAGS)
    losses = board.Scalars("loss")
    assert [scalar.step for scalar in losses] == list(range(1, 21))
    assert [scalar.value for scalar in losses] == pytest.approx([epoch.loss for epoch in runs[1].epochs])
    assert losses[-1].wall_time - losses[0].wall_time == pytest.approx(19 * 0.2)
    assert [scalar.step for scalar in board.Scalars("score/test")] == list(range(5, 21))
    assert "time/predicted_s" not in EventAccumulator(str(boards / "sylvie")).Reload().Tags()["scalars"]


def test_what_is_in_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = read_runs([made.run(tmp_path / "run")])
    with pytest.raises(ValueError, match="holds something else"):
        tensorboard.check(tmp_path, runs)
    monkeypatch.setattr("thinwire.report.tensorboard.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        tensorboard.check(tmp_path / "boards", runs)
