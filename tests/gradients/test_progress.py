"""What `auto` chooses, what a codec is measured to cost, and when the run gives it up."""

from dataclasses import replace

import pytest
import torch

from tests.gradients import ledger, work
from tests.gradients.test_plan import CODED, DENSE, made
from thinwire import gradients, launch
from thinwire.gradients.algorithms import AUTO, LEAST_GAIN, MILDEST_FIRST
from thinwire.gradients.costs import Affine, CodecCost, Profile
from thinwire.gradients.planning import MILD, PlannedGroup, Prediction, expected_share
from thinwire.gradients.progress import Progress, drawn
from thinwire.gradients.verdict import Verdict

FREE = CodecCost(*(replace(CODED.encode, group_s=0.0, tensor_s=0.0, value_s=0.0),) * 3)


def profile_of(bytes_per_s: float, coded: CodecCost = CODED) -> Profile:
    return replace(made(4, bytes_per_s), codecs={spec: DENSE if spec in AUTO[:2] else coded for spec in AUTO})


def as_much_s(plan: gradients.Plan) -> float:
    """The predicted seconds in which a plan is expected to make the progress of one uncompressed step."""
    assert plan.predicted is not None
    return plan.predicted.step_s / expected_share(plan)


@pytest.mark.parametrize("bytes_per_s", [1e6, 1e7, 5e7, 1e8, 2e8, 5e8, 1e9, 1e12])
@pytest.mark.parametrize("coded", [CODED, FREE])
def test_auto_is_lossier_only_where_it_gains_a_tenth_by_it(bytes_per_s: float, coded: CodecCost) -> None:
    profile = profile_of(bytes_per_s, coded)
    plans = [gradients.plan(profile, ",".join(specs)) for specs in MILDEST_FIRST]
    auto = gradients.plan(profile, "auto")
    at = next(at for at, plan in enumerate(plans) if plan.groups == auto.groups)
    for milder in plans[:at]:
        assert as_much_s(auto) < as_much_s(milder)
    assert at == 0 or as_much_s(auto) * LEAST_GAIN <= as_much_s(plans[0])
    for lossier in plans[at + 1 :]:
        assert as_much_s(auto) < as_much_s(lossier) * LEAST_GAIN
    if {group.codec for group in auto.groups} <= set(MILD):
        assert auto.rivals == {}
    else:
        assert set(auto.rivals) == set(MILD)
        assert as_much_s(auto) < auto.rivals["bfloat16"] < auto.rivals["none"]
    assert auto.alternatives == plans[-1].alternatives


@pytest.mark.parametrize(
    ("spec", "chosen"), [("uniform:8", True), ("qsgd:4:128", True), ("sign", False), ("topk:0.01", False)]
)
def test_a_step_that_is_15_percent_faster_is_not_worth_a_tenth_of_progress(spec: str, chosen: bool) -> None:
    """All other lossy codecs are too slow here to be chosen."""
    slow = CodecCost(*(Affine(1.0, 1.0, 1.0),) * 3)
    profile = profile_of(1e7)
    profile = replace(profile, codecs={**profile.codecs, **{other: slow for other in AUTO[2:] if other != spec}})
    predicted = gradients.plan(profile, f"none,bfloat16,{spec}").predicted
    assert predicted is not None
    auto = gradients.plan(replace(profile, plain_step_s=1.15 * predicted.step_s))
    assert (spec in {group.codec for group in auto.groups}) is chosen
    assert chosen or {group.codec for group in auto.groups} == {"none"}


@pytest.mark.parametrize(
    ("specs", "share"), [(("none", "sign"), 0.95), (("topk:0.01", "sign"), 0.75), (("none",), 1.0)]
)
def test_a_plan_of_several_codecs_is_expected_to_lose_by_their_shares_of_the_values(
    specs: tuple[str, ...], share: float
) -> None:
    groups = tuple(PlannedGroup((str(number),), spec, "all_gather", 1) for number, spec in enumerate(specs))
    plan = gradients.Plan(2, {str(number): 700 for number in range(len(specs))}, groups)
    assert expected_share(plan) == pytest.approx(share)


def test_auto_does_not_compress_on_a_fast_wire_and_does_on_a_slow_one() -> None:
    assert {group.codec for group in gradients.plan(profile_of(1e12, FREE)).groups} == {"none"}
    slow = gradients.plan(profile_of(1e6))
    assert not {group.codec for group in slow.groups} & {"none", "bfloat16"}
    assert gradients.plan(profile_of(1e6), "sign").rivals == {}  # named: never overridden


def test_auto_does_not_compress_where_a_plain_step_was_measured_to_be_as_fast() -> None:
    """Whatever is predicted of it: a prediction for none that is too high would make any codec look good."""
    profile = profile_of(1e6)
    predicted = gradients.plan(profile).predicted
    assert predicted is not None
    quick = gradients.plan(replace(profile, plain_step_s=1.05 * predicted.step_s))
    assert {group.codec for group in quick.groups} == {"none"}
    slower = gradients.plan(replace(profile, plain_step_s=2 * predicted.step_s))
    assert slower.groups == gradients.plan(profile).groups
    assert slower.rivals["none"] == 2 * predicted.step_s


def test_share_is_what_is_left_when_the_difference_is_taken_away() -> None:
    true, sent = torch.randn(2, 1000, generator=torch.Generator().manual_seed(5)).double()
    sent = true + 0.3 * sent
    cosine, ratio = float(true @ sent / true.norm() / sent.norm()), float(sent.norm() / true.norm())
    expected = 1 - float((true - sent).norm() ** 2 / true.norm() ** 2)
    assert Progress(0, 50, cosine, ratio).share == pytest.approx(expected)


def test_a_codec_falls_back_when_twice_in_a_row_it_costs_more_than_it_saves() -> None:
    plan = work.plan_by_hand(work.built(), "sign", 2)
    assert not Verdict(plan).falls_back(Progress(0, 50, -1.0, 1.0))
    plan = replace(plan, predicted=Prediction(1.0, 0.5), rivals={"none": 2.0, "bfloat16": 1.9})
    good, bad = Progress(0, 50, 0.8, 0.8), Progress(0, 50, 0.5, 0.5)  # 64 % and 25 %, where 50 % are enough
    verdict = Verdict(plan)
    assert verdict.milder == "none"  # bfloat16 would gain 5 % only
    assert [verdict.falls_back(shown) for shown in (bad, good, bad, good, bad, bad)] == [False] * 5 + [True]
    assert Verdict(plan).falls_back(Progress(0, 50, -0.1, 1.0))  # no progress at all: at once
    milder = Verdict(replace(plan, rivals={"none": 2.0, "bfloat16": 1.2}))
    assert milder.milder == "bfloat16"
    assert [milder.falls_back(shown) for shown in (good, good)] == [False, True]
    words = verdict.words(bad)
    for part in ("from sign to none", "25%", "cosine 0.50", "1000.0 ms instead of 2000.0", 'codec="sign"'):
        assert part in words


@pytest.mark.parametrize(
    ("codec", "primitive", "rivals", "skip"),
    [
        ("topk:0.002", "all_gather", {"none": 1.2, "bfloat16": 1.19}, False),
        ("topk:0.002", "two_step", {"none": 1.2, "bfloat16": 1.19}, True),
        ("sign", "two_step", {"none": 1.0, "bfloat16": 0.5}, False),
    ],
)
def test_falling_back_loses_nothing_and_is_ddp_from_then_on(
    codec: str, primitive: str, rivals: dict[str, float], skip: bool
) -> None:
    ranks = launch.run(ledger.fallen, codec, primitive, 4, 20, rivals, skip, workers=2)
    for fallen in ranks:
        assert fallen.spec == ("bfloat16" if rivals["bfloat16"] == 0.5 else "none")
        assert fallen.at == ranks[0].at
        assert fallen.progress == ranks[0].progress
        assert len(fallen.progress) == 2
        for measured, true in zip(fallen.progress, fallen.shares, strict=True):
            assert measured.steps == 4
            assert skip or measured.share == pytest.approx(true, abs=1e-3)  # of all values, as few as they are
        exact = 1e-2 if fallen.spec == "bfloat16" else 1e-6
        assert fallen.books.missing() < exact
        assert max(float(memory.norm()) for memory in fallen.books.remembered.values()) == 0.0
        # One step takes what was remembered; a branch that is not used takes it when it is.
        assert fallen.off[fallen.at[0]] > 0.1
        assert max(fallen.off[-4:]) < exact
    assert [len(fallen.said) for fallen in ranks] == [1, 0]


def test_a_sample_stands_for_all_values() -> None:
    sizes = torch.tensor([50_000, 3, 1, 700, 20_000])
    x = torch.randn(int(sizes.sum()), generator=torch.Generator().manual_seed(3)).double()
    x[50_000:50_004] *= 100  # as of norms and biases
    estimates = []
    for seed in range(200):
        places, weights = drawn(sizes, 2_000, seed)
        assert len(places) == 2_000
        assert bool((places.diff() >= 0).all())
        estimates.append(float(weights @ x[places].square() / x.square().sum()))
    assert all(estimate == pytest.approx(1, abs=0.4) for estimate in estimates)
    assert sum(estimates) / 200 == pytest.approx(1, abs=0.03)
    places, weights = drawn(sizes, 100_000, 0)
    assert torch.equal(places, torch.arange(len(x)))
    assert bool((weights == 1).all())


@pytest.mark.parametrize("codec", ["sign", "topk:0.01"])
def test_measuring_costs_a_hundredth_of_the_bytes(codec: str) -> None:
    for measuring, everything, count in launch.run(ledger.progress_bytes, codec, 20, workers=2):
        assert 0 < measuring <= 0.0125 * everything
        assert count > 400
