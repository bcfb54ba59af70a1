"""Resharding on real ranks: byte for byte what the whole cut into tiles is, whatever the plan."""

from pathlib import Path

import pytest

from tests.crossmesh import work
from tests.dist.test_lab import needs_lab
from thinwire.bench import harness
from thinwire.bench.case import Case
from thinwire.crossmesh.broadcast import ALLGATHER, BROADCAST, SEND_RECV
from thinwire.crossmesh.planning import AUTO
from thinwire.crossmesh.run import WORKERS
from thinwire.launch import Lab, RankFailed, local

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_plans_neither_mix_values_up_nor_hang(seed: int) -> None:
    assert min(local.run(work.random_plans, seed, 36, workers=5)) > 15


def test_no_plan_deadlocks_and_hands_are_never_full() -> None:
    for done, most in local.run(work.any_plans, 3, 25, workers=5):
        assert done > 100
        assert most <= WORKERS


def test_dtensors_arrive_where_they_should() -> None:
    for results in local.run(work.dtensors, workers=4):
        assert results == {"reversed source": True, "reversed destination": True}


def test_gradients_travel_back() -> None:
    assert all(local.run(work.gradients, workers=4))


def test_partial_tensors_are_reduced_as_they_say_and_doors_open_again() -> None:
    assert all(local.run(work.reductions, workers=4))


def test_gradients_of_equal_reshards_do_not_cross() -> None:
    assert all(local.run(work.swapped, workers=2))


@pytest.mark.parametrize(
    "strategy", [AUTO, *(pytest.param(way, marks=pytest.mark.slow) for way in (SEND_RECV, ALLGATHER))]
)
def test_differences_by_several_routes(strategy: str) -> None:
    assert max(local.run(work.differences, strategy, workers=4)) < 0.002  # of values up to 1.2 that change by 0.1


def test_ranks_without_a_tensor_and_ranks_in_neither_mesh() -> None:
    assert all(local.run(work.without_a_tensor, workers=4))


@pytest.mark.parametrize("strategy", [SEND_RECV, ALLGATHER, BROADCAST])
def test_the_door_counts_what_the_plan_says(strategy: str) -> None:
    counts = local.run(work.bytes_between_hosts, strategy, workers=4)
    sent = sum(of_rank.sent for of_rank in counts)
    of_plan = counts[0]
    assert sent - of_plan.planned < 16  # tokens
    assert of_plan.least == 64 * 33 * 4
    assert of_plan.planned == (2 * of_plan.least if strategy == SEND_RECV else of_plan.least)


@pytest.mark.parametrize("placement", ["S0", "P"])
def test_a_rank_killed_in_the_middle_is_named_with_the_tensor(tmp_path: Path, placement: str) -> None:
    with pytest.raises(RankFailed) as failed:
        local.run(work.killed, str(tmp_path), placement, workers=4)
    assert failed.value.rank == 2
    notes = [(tmp_path / str(rank)).read_text() for rank in (0, 1, 3) if (tmp_path / str(rank)).exists()]
    assert notes
    for words in notes:
        assert "rank 2" in words
        assert "reshard weights" in words


def test_state_dicts_arrive_exactly_or_as_well_as_the_codec_says() -> None:
    exact = [max(errors) for errors in zip(*local.run(work.state_dicts, "", workers=6), strict=True)]
    assert exact == [0.0, 0.0, 0.0]
    eight = [max(errors) for errors in zip(*local.run(work.state_dicts, "uniform:8", workers=6), strict=True)]
    assert all(1e-4 < error < 0.05 for error in eight)
    different = [
        max(errors) for errors in zip(*local.run(work.state_dicts, "difference:uniform:8", workers=6), strict=True)
    ]
    assert different[0] == 0.0
    # Steps of the differences' own range, a thousandth of the weights': and they don't add up.
    assert all(1e-8 < error < 1e-4 for error in different[1:])


@needs_lab
def test_hosts_and_rates_are_found() -> None:
    with Lab(3, rates=["100mbit", "100mbit", "20mbit"]) as hosts:
        network = hosts.run(work.profiled, ranks_per_host=2)[0]
    assert network.host_of == (0, 0, 1, 1, 2, 2)
    assert network.bytes_per_s[0][1] == pytest.approx(100e6 / 8, rel=0.2)
    assert network.bytes_per_s[2][0] == pytest.approx(20e6 / 8, rel=0.2)
    assert network.local_bytes_per_s > 3 * network.bytes_per_s[0][1]
    assert network.message_s > 0


@needs_lab
def test_a_case_runs_and_its_rows_have_what_was_promised(tmp_path: Path) -> None:
    problems = {"a": "1x2 R S0 -> 2x2 R R of 64x32", "b": "2x2 S1 R -> 1x2 S0 R of 9x7"}
    case = Case(
        "c", "crossmesh", (SEND_RECV, AUTO), hosts=3, ranks_per_host=2, repeats=1, settings={"problems": problems}
    )
    result = harness.run(case)
    assert result.failed is None
    for row in result.to_json()["rows"]:
        assert set(row["problems"]) == {"a", "b"}
        for problem in row["problems"].values():
            assert problem["seconds"] >= problem["bound_s"] > 0
            assert problem["predicted_s"] >= problem["bound_s"]


@pytest.mark.parametrize(
    ("problems", "words"),
    [
        ({}, "give a table"),
        ({"a": "2x4 S0 R"}, "is no problem"),
        ({"a": "2x4 S0 -> 2x4 R R of 8x8"}, "give one for each"),
        ({"a": "2x4x1 S0 R R -> 2x4 R R of 8x8"}, "hosts x ranks"),
        ({"a": "2x4 S5 R -> 2x4 R R of 8x8"}, "has not"),
    ],
)
def test_mistakes_in_a_case_are_named(problems: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        harness.check(Case("c", "crossmesh", (AUTO,), hosts=4, settings={"problems": problems}))
