"""What was applied and what is remembered is what came in: for every parameter, however ranks use it."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.gradients import ledger
from thinwire import launch
from thinwire.launch import RankFailed

LOSSY = [("topk:0.05", "all_gather"), ("sign", "two_step")]
OTHERS = [
    ("topk:0.05", "two_step"),
    ("sign", "all_gather"),
    ("qsgd:4:128", "two_step"),
    ("uniform:4", "all_gather"),
    ("nearest:1", "all_gather"),
    ("budget:0.5", "two_step"),
    ("ternary", "two_step"),
    ("randomk:0.25", "all_reduce"),
    ("dgc:0.05", "all_gather"),
]
SEVERAL_PASSES: list[dict[str, Any]] = [
    {"accumulate": 2},
    {"sends": 2},
    {"to_none": False},
    {"sends": 2, "view": False},
    {"accumulate": 1, "to_none": False, "view": False},
]


def balance(cases: Sequence[Any], ranks: Sequence[Sequence[ledger.Ledger]]) -> None:
    """These cases' ledgers do, on every rank."""
    for number, case in enumerate(cases):
        for book in (books[number] for books in ranks):
            assert book.missing() < 1e-4, case
            assert all(book.untouched), case
            # Or there was nothing to lose.
            assert float(book.remembered["trunk.weight"].norm()) > 0.01, case


def kept(cases: list[tuple[str, str, str, int, dict[str, Any]]], workers: int) -> None:
    balance(cases, launch.run(ledger.every_kept, cases, workers=workers))


@pytest.mark.parametrize(("codec", "primitive"), LOSSY)
def test_nothing_is_lost_however_ranks_use_parameters(codec: str, primitive: str) -> None:
    kept([(codec, primitive, pattern, 21 if pattern == "tenth" else 7, {}) for pattern in ledger.PATTERNS], 2)


def test_nothing_is_lost_by_any_codec() -> None:
    kept([(codec, primitive, "drawn", 8, {}) for codec, primitive in OTHERS], 3)


def test_nothing_is_lost_by_several_passes() -> None:
    kept([(codec, primitive, "turns", 5, options) for codec, primitive in LOSSY for options in SEVERAL_PASSES], 2)


@pytest.mark.parametrize(
    "options", [{"groups": [[0, 1], [2, 3]], "mesh": True}, {"groups": [[0, 2], [1, 3]], "mesh": False}]
)
def test_groups_side_by_side_train_as_with_ddp_and_lose_nothing(options: dict[str, Any]) -> None:
    outcomes = launch.run(ledger.in_groups, LOSSY, options, workers=4)
    for rank, ((ours, plain, apart), _) in enumerate(outcomes):
        assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))  # sums of two have one order
        assert (apart == 0.0) == (rank in options["groups"][0])
    balance(LOSSY, [books for _, books in outcomes])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("batches", [[4, 9, 6], [5, 0, 5]])
def test_ranks_that_run_out_of_batches_answer_for_the_others(batches: list[int]) -> None:
    """With `join`, as with DDP: zeros from those who have none, and what they remember."""
    outcomes = launch.run(ledger.uneven, [*LOSSY, ("none", "")], batches, workers=3)
    for books, ours, plain in outcomes:
        for book in books:
            assert book.missing() < 1e-4
        for a, b in zip(ours, plain, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.timeout(60)
def test_the_first_rank_needs_a_batch_to_join() -> None:
    with pytest.raises(RankFailed, match="rank 0 has joined before it had a batch"):
        launch.run(ledger.uneven, LOSSY[:1], [0, 3], workers=2)


def test_what_cannot_be_is_refused_in_words() -> None:
    refusals = launch.run(ledger.refused, workers=3)
    words = {
        "door of a group": r"door reaches ranks 0, 1, gradients are averaged over ranks 0, 1, 2; give Door\(group",
        "door of all": "door reaches ranks 0, 1, 2, gradients are averaged over ranks 0, 1;",
        "plan of all": "made for 3 ranks, this run has 2",
        "both": "process_group and device_mesh say the same",
        "mesh": "device_mesh has dimensions .*replicate.*shard",
        "unused": "find_unused_parameters=False; profile with find_unused_parameters=True",
        "another plan": "ranks have different plan: rank 0 has",
        "effective size": "leave out divide_by_initial_world_size",
        "join of unused": "parameters that may get no gradient",
    }
    for what, match in words.items():
        assert re.search(match, refusals[0][what]), refusals[0].get(what)
    assert "rank 2 is not in its process_group" in refusals[2]["not in it"]
