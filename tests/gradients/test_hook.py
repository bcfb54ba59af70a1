"""Wrapped models on real ranks: equal replicas, DDP's own losses, nothing poisoned, memory that survives."""

import pytest
import torch

from tests.gradients import work
from thinwire import gradients, launch
from thinwire.gradients.costs import Profile
from thinwire.gradients.memory import memory_for

CASES = [
    ("none", ""),
    ("bfloat16", ""),
    ("float16", ""),
    ("sign", "all_gather"),
    ("sign", "two_step"),
    ("ternary", "all_gather"),
    ("ternary", "two_step"),
    ("qsgd:4:128", "two_step"),
    ("uniform:4", "all_gather"),
    ("uniform:8", "two_step"),
    ("nearest:1", "two_step"),
    ("budget:0.5", "all_gather"),
    ("topk:0.05", "all_gather"),
    ("topk:0.05", "two_step"),
    ("randomk:0.25", "all_reduce"),
    ("dgc:0.05", "all_gather"),
]


SOME = [("sign", "all_gather"), ("uniform:4", "two_step"), ("topk:0.05", "all_gather"), ("topk:0.05", "two_step")]


@pytest.mark.parametrize(("workers", "cases"), [(2, CASES), (3, SOME), pytest.param(3, CASES, marks=pytest.mark.slow)])
def test_replicas_stay_equal_and_learn_by_every_codec(workers: int, cases: list[tuple[str, str]]) -> None:
    results = launch.run(work.every_codec, cases, 25, workers=workers)
    for case in cases:
        first = results[0][case][1]
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(first, other[case][1], strict=True)), case
        losses = torch.tensor([result[case][0] for result in results]).mean(0)
        plain = torch.tensor([result["ddp", ""][0] for result in results]).mean(0)
        # The first pass is sent as it is.
        torch.testing.assert_close(losses[:2], plain[:2])
        assert losses.isfinite().all()
        assert losses[-5:].mean() < plain[:5].mean() - 0.02, case
    if workers == 2:  # sums of two have one order
        assert results[0]["none", ""][0] == results[0]["ddp", ""][0]


@pytest.mark.parametrize("options", [{}, {"odd": True}, {"unused": True}, {"shared": True}])
def test_groups_are_the_planned_ones(options: dict[str, bool]) -> None:
    for seen, planned, losses in launch.run(work.groups_seen, options, workers=2):
        assert seen == planned
        assert torch.tensor(losses).isfinite().all()


@pytest.mark.parametrize("primitive", ["all_gather", "two_step"])
@pytest.mark.parametrize("codec", ["topk:0.02", "sign", "ternary", "uniform:2", "qsgd:4"])
def test_what_was_sent_and_what_is_owed_is_what_came(codec: str, primitive: str) -> None:
    for off, size in launch.run(work.conserved, codec, primitive, 40, workers=2):
        assert off < 1e-4 * max(size, 1), (codec, off)


@pytest.mark.parametrize(
    ("codec", "primitive"),
    [
        ("none", ""),
        ("bfloat16", ""),
        ("float16", ""),
        ("topk:0.05", "all_gather"),
        ("sign", "two_step"),
        ("randomk:0.25", "all_reduce"),
        ("dgc:0.05", "all_gather"),
    ],
)
def test_an_infinite_gradient_is_said_and_forgotten(codec: str, primitive: str) -> None:
    for result in launch.run(work.poisoned, codec, primitive, workers=2):
        assert not any(result.finite)
        assert result.same_memory
        assert result.skipped == 1
        assert len(result.warnings) == 1
        assert "not finite" in result.warnings[0]
        assert torch.tensor(result.loss).isfinite()


@pytest.mark.parametrize(
    ("codec", "primitive", "cuts"),
    [
        ("topk:0.05", "all_gather", (3, 7)),
        ("dgc:0.05", "all_gather", (3, 7)),
        ("sign", "all_gather", (3, 7)),
        ("sign", "two_step", (3, 7)),
        ("topk:0.05", "all_gather", (5,)),
    ],
)
def test_memory_saved_and_loaded_goes_on_bit_for_bit(codec: str, primitive: str, cuts: tuple[int, ...]) -> None:
    """Also in other groups than before: what is remembered is a parameter's."""
    for whole, again in launch.run(work.resumed, codec, primitive, cuts, workers=2):
        assert whole == again


def test_memory_goes_on_at_another_number_of_ranks() -> None:
    """What is owed, the mean over ranks of what they remember, is the same before and after."""
    old = launch.run(work.memory_after, "topk:0.05", 4, None, workers=3)
    new = launch.run(work.memory_after, "topk:0.05", 0, gradients.mean_of(old), workers=2)
    assert sum(name.startswith("residual/") for name in new[0]) >= 4
    for name in (key for key in new[0] if key.startswith("residual/")):
        owed = torch.stack([state[name] for state in old]).mean(0)
        torch.testing.assert_close(torch.stack([state[name] for state in new]).mean(0), owed)
    assert any(bool(state.any()) for name, state in new[0].items() if name.startswith("residual/"))
    more = launch.run(work.memory_after, "topk:0.05", 3, gradients.mean_of(old), workers=2)
    assert int(more[0]["steps"]) == int(old[0]["steps"]) + 2  # a wrapper's first pass is sent as it is


def test_accumulation_clipping_shared_unused_and_mixed_precision_as_with_ddp() -> None:
    results = launch.run(work.user_loop, workers=2)
    for result in results:
        for name in ("plain", "shared", "unused"):
            assert result[name, "none"] == pytest.approx(result[name, "ddp"], rel=1e-6), name
            assert result[name, "topk:0.05"] == results[0][name, "topk:0.05"]  # of the same gradients
            assert result[name, "topk:0.05"] != pytest.approx(result[name, "ddp"], rel=1e-3)
            assert torch.tensor(result[name, "topk:0.05"]).isfinite().all()


def test_memory_is_without_the_loss_scale() -> None:
    for with_scaler, without in launch.run(work.scaled, workers=2):
        for a, b in zip(with_scaler, without, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("codec", "primitive"), [("sign", "all_gather"), ("sign", "two_step"), ("topk:0.05", "two_step")]
)
def test_bytes_at_the_door(codec: str, primitive: str) -> None:
    n = 3
    for sent, payload in launch.run(work.sent, codec, primitive, workers=n):
        # A flag each; a slice's own scales make it a little more.
        expected = (n - 1) * payload if primitive == "all_gather" else 2 * (n - 1) / n * payload
        assert sent == pytest.approx(expected, rel=0.02, abs=4 * n)


@pytest.mark.parametrize(("primitive", "messages"), [("all_gather", [""]), ("two_step", ["", ".second"])])
def test_one_message_a_group_and_step(primitive: str, messages: list[str]) -> None:
    for steps in launch.run(work.books_of_steps, "topk:0.05", primitive, 3, 0, workers=3):
        for books in steps:
            # As planned, and nothing beside.
            assert sorted(books) == [f"gradients.{group}{which}" for group in range(3) for which in messages]
            assert {book["operations"] for book in books.values()} == {1}


def test_dgc_sends_less_and_less_while_it_warms_up() -> None:
    for steps in launch.run(work.books_of_steps, "dgc:0.01", "all_gather", 8, 6, workers=2):
        sent = [sum(sum(book["bytes_to"].values()) for book in books.values()) for books in steps]
        # A quarter, a sixteenth, a sixty-fourth of all values, two steps each, then the ratio itself.
        assert [sent[i] == sent[i + 1] for i in range(7)] == [True, False, True, False, True, False, True]
        assert sent == sorted(sent, reverse=True)
        assert sent[0] > 3 * sent[-1]  # small tensors go as they are


def test_one_rank_alone() -> None:
    [result] = launch.run(work.every_codec, [("topk:0.05", "all_gather"), ("sign", "two_step")], 10, workers=1)
    assert all(torch.tensor(losses).isfinite().all() for losses, _ in result.values())


@pytest.mark.parametrize(
    ("kind", "order"), [("odd", "ready"), ("shared", "ready"), ("unused", "defined"), ("branched", "defined")]
)
def test_profiles_of_models_that_are_odd_are_the_same_everywhere(kind: str, order: str) -> None:
    (profiled_order, profile, losses), (_, other, _) = launch.run(work.profiled, kind, workers=2)
    assert profiled_order == order
    assert profile == other
    assert torch.tensor(losses).isfinite().all()


def test_a_profile_on_one_rank() -> None:
    [(order, _, losses)] = launch.run(work.profiled, "", workers=1)
    assert order == "ready"
    assert torch.tensor(losses).isfinite().all()


def test_what_slices_owe_is_remembered_in_other_groups_too() -> None:
    """Saved by three ranks in two steps; a mean over ranks, or other groups, keep what is owed altogether."""
    states = [{"steps": torch.tensor(3), "residual/a": torch.randn(6), "owed/a": torch.zeros(6)} for _ in range(3)]
    for rank, state in enumerate(states):
        state["owed/a"][2 * rank : 2 * rank + 2] = rank + 1.0
    altogether = sum(state["residual/a"] + state["owed/a"] for state in states)
    mean = gradients.mean_of(states)
    assert set(mean) == {"steps", "residual/a"}
    torch.testing.assert_close(mean["residual/a"] * 3, altogether)
    for state in states:
        restored = {what: {"a": state[f"{what}/a"]} for what in ("residual", "owed")}
        elsewhere = memory_for("residual", ["a"], [6], restored, 0.9, torch.device("cpu"), restored["owed"]["a"])
        torch.testing.assert_close(elsewhere.tensors()["residual"], state["residual/a"] + state["owed/a"])


def test_profile_plan_wrap_as_a_user_does() -> None:
    results = launch.run(work.planned, ("topk:0.05", "sign"), workers=2)
    (profile, plan, losses, times), (other_profile, other_plan, _, _) = results
    assert profile == other_profile
    assert plan == other_plan
    assert Profile.from_json(profile).to_json() == profile
    assert torch.tensor(losses).isfinite().all()
    assert times == sorted(times)
    assert len(times) == len(plan.groups)
    assert set(plan.alternatives) == {"none", "bfloat16", "layer-wise", "one"}
    assert plan.predicted is not None
    assert plan.predicted.step_s <= min(plan.alternatives["layer-wise"], plan.alternatives["one"]) + 1e-12


def test_a_plan_for_another_model_or_world_is_refused() -> None:
    model = work.built()
    plan = work.plan_by_hand(model, "sign", 4)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    with pytest.raises(ValueError, match="made for 4 ranks, this run has 2; profile and plan again"):
        plan.check(sizes, 2)
    with pytest.raises(ValueError, match="another model: unused"):
        plan.check({name: parameter.numel() for name, parameter in work.built(unused=True).named_parameters()}, 4)
    with pytest.raises(ValueError, match="was not made by"):
        gradients.hook_of(model)


def test_a_mean_of_memories_keeps_what_is_owed() -> None:
    states = [{"steps": torch.tensor(3), "residual/a": torch.randn(5)} for _ in range(4)]
    mean = gradients.mean_of(states)
    torch.testing.assert_close(mean["residual/a"], torch.stack([s["residual/a"] for s in states]).mean(0))
    with pytest.raises(ValueError, match="every old rank"):
        gradients.mean_of([states[0], {}])
