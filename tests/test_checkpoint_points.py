"""Points of a run that checkpoints are of: within epochs and at their ends."""

import re
from pathlib import Path

import pytest
import torch

from thinwire.training import checkpoint
from thinwire.training.checkpoint import Checkpoint, CheckpointError, Offer, Point, RankFiles


def test_points_are_written_as_they_are_read() -> None:
    for point in (Point(3), Point(0, 7), Point(12, 40)):
        assert Point.parse(point.typed) == point
    assert str(Point(3, 40)) == "epoch 3 and 40 steps"
    assert Point(2, 99) < Point(3) < Point(3, 1)


@pytest.mark.parametrize("text", ["", "x", "3:", ":4", "-1", "3:4:5"])
def test_what_is_no_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="as in 3:40"):
        Point.parse(text)


def test_the_last_few_stay_and_the_last_end_of_an_epoch(tmp_path: Path) -> None:
    place = RankFiles(tmp_path, 0, 2)
    written = [Point(1), Point(2), *(Point(2, step) for step in (3, 6, 9, 12))]
    for number, point in enumerate(written):
        checkpoint.write(place, Checkpoint(point, {"n": number}, {"w": torch.full((2,), float(number))}))
    assert place.points() == [Point(2), Point(2, 6), Point(2, 9), Point(2, 12)]
    state = checkpoint.read(place, Point(2, 9))
    assert (state.point, state.facts) == (Point(2, 9), {"n": 4})
    assert state.tensors["w"].tolist() == [4.0, 4.0]
    assert checkpoint.runs(tmp_path) == [2]
    place.tensors(Point(2, 12)).write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=re.escape("--resume-epoch 2:9 goes on from there")):
        checkpoint.read(place, Point(2, 12))


def test_the_latest_of_what_all_have_or_the_one_asked_for() -> None:
    here = [Offer(Point(1), 2), Offer(Point(1, 5), 2), Offer(Point(2), 2)]
    shared = checkpoint.common([here, here[:2]])
    assert shared == here[:2]
    assert checkpoint.choose(shared, None) == Offer(Point(1, 5), 2)
    assert checkpoint.choose(shared, Point(1)) == Offer(Point(1), 2)
    assert checkpoint.common([here, []]) == []  # a kill came before all had one
    further = Offer(Point(3), 4)  # of another number of ranks
    assert checkpoint.choose([*shared, further], None) == further
    assert checkpoint.choose([Offer(Point(3), 2), further], None) == Offer(Point(3), 2)
    assert checkpoint.choose([], None) is None
    with pytest.raises(CheckpointError, match="there are those after epoch 1, epoch 1 and 5 steps"):
        checkpoint.choose(shared, Point(9))
