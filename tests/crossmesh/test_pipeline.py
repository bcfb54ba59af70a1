"""Pipelines on real ranks: gradients equal those of the model in one piece, whatever the schedule and the stages."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.crossmesh import work_pipeline as work
from tests.crossmesh.work_pipeline import Case
from thinwire import launch
from thinwire.crossmesh.pipelines import schedule
from thinwire.crossmesh.pipelines.edges import StageRanks
from thinwire.crossmesh.pipelines.stage import Stage

ONE_EACH = [(0,), (1,), (2,), (3,)]


def cases_of(n: int, m: int) -> dict[str, Case]:
    plain, eager = schedule.one_f_one_b(n, m), schedule.eager_1f1b(n, m)
    return {
        "gpipe": Case(schedule.gpipe(n, m)),
        "1f1b": Case(plain),
        "eager": Case(eager),
        "1f1b split": Case(schedule.split(plain)),
        "eager split": Case(schedule.split(eager)),
        "late": Case(schedule.split(eager, delay=2)),
        "1f1b blocking": Case(plain, blocking=True),
        "eager blocking": Case(eager, blocking=True),
    }


def assert_equal(computed: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert computed.keys() == expected.keys()
    for name, gradient in computed.items():
        # Relative to the tensor's largest: sums over micro-batches are made in another order.
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-6 * float(expected[name].abs().max()))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["plain", "unet"])
def test_every_schedule_gives_the_whole_models_gradients(kind: str) -> None:
    """Ten rows in four micro-batches: of three and of two. The second step posts its receives ahead, and may block."""
    loss, expected = work.whole(kind, 10)
    cases = cases_of(4, 4)
    outcomes = launch.run(work.run, kind, ONE_EACH, cases, 10, 2, workers=4)
    for name, case in cases.items():
        for rank, outcome in enumerate(outcomes):
            assert_equal(outcome[name].gradients, expected[rank])
            assert outcome[name].peak_activations == case.schedule.peak_activations(rank)
        assert outcomes[3][name].losses == pytest.approx([loss, loss], rel=1e-6)
        assert outcomes[0][name].losses == [None, None]
        # Each activation crosses once, and its gradient once: 10 rows of 6 x 16 floats, twice.
        there = outcomes[0][name].bytes_sent["reshard pipeline h1 forward"]
        back = outcomes[1][name].bytes_sent["reshard pipeline h1 backward"]
        assert there == back == 2 * 10 * 6 * 16 * 4


@pytest.mark.timeout(60)
def test_no_schedule_deadlocks() -> None:
    """Ready actions in any order, also of micro-batches; with sends that block and without; a step that tells shapes
    and one that posts ahead."""
    loss, expected = work.whole("unet", 8)
    cases = {
        f"{seed}{' blocking' * blocking}": Case(work.any_schedule(4, 4, seed), blocking)
        for seed in range(6)
        for blocking in (False, True)
    }
    first_stages = [case.schedule.stages[0] for case in cases.values()]
    orders = {tuple(action.microbatch for action in actions if action.kind == "F") for actions in first_stages}
    assert len(orders) > 3
    outcomes = launch.run(work.run, "unet", ONE_EACH, cases, 8, 2, workers=4)
    for name, case in cases.items():
        for rank, outcome in enumerate(outcomes):
            assert_equal(outcome[name].gradients, expected[rank])
            assert outcome[name].peak_activations == case.schedule.peak_activations(rank)
        assert outcomes[3][name].losses == pytest.approx([loss, loss], rel=1e-6)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "ranks",
    [
        [(0,), (1, 2), (3,)],
        [(3, 0), (2,), (1,)],
        [StageRanks((1,)), StageRanks((2, 0), "R"), StageRanks((3,))],
        [StageRanks((0, 1)), StageRanks((2, 3), "R")],
        [(0,), (1, 2, 3)],
    ],
    ids=["1-2-1", "2-1-1", "1-2R-1", "2-2R", "1-3"],
)
def test_stages_of_different_size(ranks: list[StageRanks | tuple[int, ...]]) -> None:
    n = len(ranks)
    loss, expected = work.whole("plain", 20, n)
    cases = {name: case for name, case in cases_of(n, 4).items() if name in ("1f1b blocking", "eager split")}
    outcomes = launch.run(work.run, "plain", ranks, cases, 20, 2, workers=4)
    for name in cases:
        for outcome in outcomes:
            assert_equal(outcome[name].gradients, expected[outcome[name].stage])
        for stage in range(n):
            same = [outcome[name].gradients for outcome in outcomes if outcome[name].stage == stage]
            assert all(torch.equal(one[key], same[0][key]) for one in same for key in one)
        last = [outcome[name].losses for outcome in outcomes if outcome[name].stage == n - 1]
        assert all(losses == pytest.approx([loss, loss], rel=1e-6) for losses in last)


@pytest.mark.timeout(60)
def test_tied_weights_and_gradients_of_earlier_steps() -> None:
    for facts in launch.run(work.tied, workers=3):
        for computed, expected in facts:
            torch.testing.assert_close(computed, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.timeout(60)
def test_another_batch_size_must_be_given() -> None:
    answers = launch.run(work.other_size, workers=2)
    assert answers[0] == "ok"
    assert answers[1] == "ok"


@pytest.mark.timeout(60)
def test_a_lost_rank_is_named(tmp_path: Path) -> None:
    with pytest.raises(launch.RankFailed):
        launch.run(work.lose_a_rank, str(tmp_path), workers=3)
    notes = {int(note.name): note.read_text() for note in tmp_path.iterdir()}
    assert set(notes) == {0, 2}
    for said in notes.values():
        assert said.startswith("rank 1 ")
        assert "pipeline h" in said


@pytest.mark.timeout(60)
def test_an_emulated_pace() -> None:
    """Every action lasts as long as it should: an iteration takes at least what simulation says."""
    measured, predicted = launch.run(work.paced, workers=2)[0]
    assert predicted <= measured


@pytest.mark.timeout(60)
def test_torchs_own_runtime_obeys_our_schedules() -> None:
    _, expected = work.whole("plain", 16)
    chosen = {"eager": schedule.eager_1f1b(4, 8), "eager split": schedule.split(schedule.eager_1f1b(4, 8))}
    outcomes = launch.run(work.by_torch, chosen, 16, workers=4)
    for name in chosen:
        for rank, gradients_by_name in enumerate(outcomes):
            assert_equal(gradients_by_name[name], expected[rank])


@pytest.mark.timeout(60)
def test_a_pipeline_measures_its_own_costs() -> None:
    profiles = launch.run(work.profiled, workers=4)
    costs = profiles[0].costs
    assert all(there.costs == costs for there in profiles)  # the same on every rank
    assert costs.hosts == (0, 1, 2)
    for stage in costs.stages:  # at their pace, or later on a busy machine
        assert stage.forward_s >= 0.02
        assert stage.backward_s >= 0.05
    for stage in costs.stages[1:]:
        assert stage.input_s >= 0.03
        assert stage.weight_s >= 0.02
    assert [(wire.name, wire.source, wire.destination) for wire in costs.wires] == [("h1", 0, 1), ("h2", 1, 2)]
    assert all(seconds > 0 for wire in costs.wires for seconds in (wire.forward_s, wire.backward_s))
    # The middle stage's two ranks each keep the half of what the whole of a micro-batch would take: 2 rows of 4.
    module = work.plain_stages(3)[1]
    x = torch.randn(2, 6, 16, requires_grad=True)
    whole = Stage(module, ["h2"], None)
    whole.forward(0, {"h1": x}, {}, None, 1.0)
    assert profiles[1].activation_bytes == costs.stages[1].activation_bytes == whole.activation_bytes


def test_a_blocking_send_ends_when_its_receiver_has_said_so() -> None:
    sender, receiver = launch.run(work.receipts, 0.6, workers=2)
    assert sender[False] < sender[True]
    assert sender[True] > 0.55
    assert receiver[True] > 0.55  # and what is said late is not lost
