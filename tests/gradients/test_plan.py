"""Plans from made-up profiles: the cheaper primitive at that world size, no compression where it does not pay."""

import pytest

from thinwire import gradients
from thinwire.gradients.costs import READY, Affine, CodecCost, Contention, Profile, TensorTimes
from thinwire.links.cost import Hinge

NOTHING = Affine(0.0, 0.0, 0.0)
DENSE = CodecCost(NOTHING, NOTHING, NOTHING)
CODED = CodecCost(Affine(2e-5, 1e-5, 5e-10), Affine(1e-5, 5e-6, 2e-10), Affine(1e-5, 5e-6, 2e-10))


def made(world_size: int, bytes_per_s: float, *, coded: CodecCost = CODED, message_s: float = 0.0) -> Profile:
    """Twenty tensors of 50,000 values, 5 ms of backward each; messages of 2 ms and what their bytes take."""
    n = world_size
    slope = {"all_gather": n - 1, "all_reduce": 2 * (n - 1) / n, "all_to_all": n - 1}
    return Profile(
        world_size=n,
        order=READY,
        tensors=tuple(TensorTimes(f"t{number}", 50_000, 0.005) for number in range(20)),
        rest_s=0.05,
        codecs={"none": DENSE, "bfloat16": DENSE, "sign": coded, "topk:0.01": coded},
        transfers={kind: Hinge(0.0, 2e-3, times / bytes_per_s) for kind, times in slope.items()},
        post_s=1e-5,
        contention=Contention(message_s, 0.0),
    )


@pytest.mark.parametrize(("world_size", "primitive"), [(2, "all_gather"), (64, "two_step")])
def test_payloads_meet_by_what_is_cheaper_at_that_number_of_ranks(world_size: int, primitive: str) -> None:
    plan = gradients.plan(made(world_size, 1e6), "sign")  # so slow a wire decides alone
    assert {group.primitive for group in plan.groups} == {primitive}


def test_auto_does_not_compress_where_the_wire_is_fast_and_does_where_it_is_slow() -> None:
    fast = gradients.plan(made(4, 1e12), "none,bfloat16,sign,topk:0.01")
    assert {group.codec for group in fast.groups} <= {"none", "bfloat16"}
    slow = gradients.plan(made(4, 1e7), "none,bfloat16,sign,topk:0.01")
    assert slow.groups[-1].codec in ("sign", "topk:0.01")  # those before it may hide behind backward
    assert slow.predicted is not None
    assert slow.predicted.step_s < 0.5 * slow.alternatives["none"]


@pytest.mark.parametrize("message_s", [0.0, 1e-3, 1e-2])
@pytest.mark.parametrize("bytes_per_s", [1e6, 1e7, 1e8, 1e9])
def test_no_usual_plan_is_predicted_to_be_faster(bytes_per_s: float, message_s: float) -> None:
    """What is predicted counts more than the model that is solved exactly: the plan is the best of both."""
    profile = made(4, bytes_per_s, message_s=message_s)
    plan = gradients.plan(profile, "topk:0.01")
    assert plan.predicted is not None
    for fusion in ("one", "layer-wise", "equal:2", "equal:4", "equal:8"):
        usual = gradients.plan(profile, "topk:0.01", fusion=fusion).predicted
        assert usual is not None
        assert plan.predicted.step_s <= usual.step_s * (1 + 1e-12)


def test_the_same_profile_gives_the_same_plan() -> None:
    assert gradients.plan(made(4, 1e7), "sign,topk:0.01") == gradients.plan(made(4, 1e7), "sign,topk:0.01")
