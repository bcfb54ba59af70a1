"""A folder as values, whatever state it is in."""

import json
from pathlib import Path

import pytest

from tests.report import made
from thinwire.checked import Count, Number, leniently
from thinwire.report import read_runs


def test_a_complete_run(tmp_path: Path) -> None:
    (run,) = read_runs([made.run(tmp_path / "one", method="adaqp", ranks=3, prediction=True)])
    assert (run.label, run.method, run.done, run.asked) == ("one", "adaqp", 20, 20)
    assert run.state.word == "complete"
    assert [assignment.from_epoch for assignment in run.assignments] == [5, 10, 15]
    assert run.assignments[0].messages[0].rows_at_bits == {0: 10, 2: 18, 8: 72}
    assert len(run.facts.links) == 6
    assert run.prediction is not None
    assert run.prediction.recommended == "adaqp"
    assert run.median("seconds") == pytest.approx(0.2)
    assert run.epochs[7].predicted == {"halo_bytes": (400_000, 400_000)}
    assert [len(epoch.ranks) for epoch in run.epochs[:6]] == [0, 3, 0, 0, 0, 3]
    assert run.epochs[5].spans[2][1].name == "convs.1.forward"
    assert run.epochs[3].test_score is None


def test_a_killed_run_says_where_it_stopped(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "cut", epochs=7, asked=50, complete=False, tail='{"epoch": 7, "loss": 0.')
    (run,) = read_runs([folder])
    assert run.state.word == "unfinished"
    assert (
        run.state.sentence
        == "stopped after epoch 7 of 50, or is still running; the last line was cut off; --resume goes on with it"
    )
    assert run.done == 7


def test_a_last_line_without_its_end_counts(tmp_path: Path) -> None:
    (run,) = read_runs([made.run(tmp_path / "whole", epochs=3, complete=False, tail='{"epoch": 3, "loss": 0.5}')])
    assert run.done == 4
    assert "cut off" not in run.state.sentence


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    (run,) = read_runs([made.run(tmp_path / "bad", epochs=4, asked=9, complete=False, error="rank 1 silent for 60 s")])
    assert (run.state.word, run.state.error) == ("failed", "rank 1 silent for 60 s")
    assert run.state.sentence == "stopped after epoch 4 of 9"


def test_a_result_of_fewer_epochs_is_of_an_earlier_run(tmp_path: Path) -> None:
    (run,) = read_runs([made.run(tmp_path / "resumed", epochs=10, asked=30)])
    assert run.state.word == "unfinished"


def test_a_run_that_did_not_get_to_its_first_epoch(tmp_path: Path) -> None:
    (run,) = read_runs([made.run(tmp_path / "none", epochs=0, asked=9, complete=False)])
    assert run.state.sentence.startswith("stopped before the first epoch of 9 was over")
    assert run.median("seconds") is None


def test_an_older_run_has_little_and_that_is_enough(tmp_path: Path) -> None:
    """No plan's new keys, no result: its predictions say that it came to its end."""
    (tmp_path / "plan.json").write_text(json.dumps({"seed": 0, "world_size": 2, "plan": {"method": "exact"}}))
    (tmp_path / "events.jsonl").write_text('{"epoch": 0, "loss": 1.5, "seconds": 0.1}\n')
    (run,) = read_runs([tmp_path])
    assert run.state.word == "unfinished"
    (tmp_path / "predictions.npz").touch()
    (run,) = read_runs([tmp_path])
    assert (run.state.word, run.asked, run.done, run.facts.links, run.prediction) == ("complete", None, 1, (), None)
    assert run.epochs[0].loss == 1.5


def test_unknown_and_wrong_values_count_as_missing(tmp_path: Path) -> None:
    row = {
        "epoch": 0,
        "loss": "low",
        "seconds": True,
        "bytes": [1],
        "stale": 1,
        "channels": {"a": 3, "b": {"bytes": 5}},
    }
    row |= {"ranks": [None, {"seconds": "x"}], "spans": [[["wait", "a", 0.1, None, 0], "x"], 3], "newer": {"key": 1}}
    damaged = 'nonsense\n{"no": "epoch"}\n' + '{"epoch": 1, "loss": NaN}\n' + '{"epoch": 1, "loss": 2}\n'
    (tmp_path / "events.jsonl").write_text(json.dumps(row) + "\n" + damaged)
    (tmp_path / "plan.json").write_text(
        '{"links": [{"src": 0, "dst": -1, "bytes_per_s": 5}], "plan": [], "prediction": 3}'
    )
    (run,) = read_runs([tmp_path])
    first, second = run.epochs
    assert (first.loss, first.seconds, first.bytes, first.stale) == (None, None, None, None)
    assert list(first.channels) == ["b"]
    assert len(first.ranks) == 1
    assert first.spans == ((), ())
    assert second.loss == 2  # of the epoch that was run again
    assert run.facts.links == ()
    assert "2 lines of events.jsonl are no epochs" in run.state.sentence


def test_numbers_are_finite_and_no_truths() -> None:
    values = dict(enumerate((3, True, "3", float("inf"), float("nan"), 10**400, None)))
    assert leniently(values, dict[int, Number]) == {0: 3.0}
    assert leniently({"2": 5, "x": 1, "-1": 1, "8": "many", "²": 1}, dict[Count, Number]) == {2: 5.0}


def test_labels_tell_runs_apart(tmp_path: Path) -> None:
    folders = [made.run(tmp_path / name / "run", epochs=1) for name in ("a", "b")]
    assert [run.label for run in read_runs(folders)] == ["a/run", "b/run"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist; give a folder that `thinwire train --out`"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match=r"holds no run: neither plan.json nor events.jsonl"):
        read_runs([tmp_path])
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match=r"plan.json: not sound JSON"):
        read_runs([tmp_path])
    with pytest.raises(ValueError, match=r"is no folder"):
        read_runs([tmp_path / "plan.json"])
    folder = made.run(tmp_path / "run", epochs=1)
    with pytest.raises(ValueError, match=r"given twice"):
        read_runs([folder, tmp_path / "run" / ".." / "run"])
