"""The trace file, DGC's warm-up, plans as files."""

import json
from pathlib import Path

import pytest
import torch

from tests.gradients import work
from thinwire import gradients
from thinwire.gradients.algorithms import MASKED, MOMENTUM, RESIDUAL, algorithm
from thinwire.gradients.coded import FINE
from thinwire.gradients.hook import MeasuredGroup, warm_up_ratio
from thinwire.gradients.layout import SMALL, parts_of, slices_of
from thinwire.gradients.memory import memory_for
from thinwire.gradients.planning import Plan, Prediction, ddp_ends
from thinwire.gradients.trace import write_trace


def test_a_trace_has_every_span(tmp_path: Path) -> None:
    plan = work.plan_by_hand(work.built(), "sign", 2)
    spans = {
        f"{lane}_{end}_s": 0.1 * i + 0.05 * (end == "end")
        for i, lane in enumerate(("compress", "transfer", "decompress"))
        for end in ("begin", "end")
    }
    predicted = Plan(**{**plan.__dict__, "predicted": Prediction(1.0, 0.5, groups=(spans,) * len(plan.groups))})
    write_trace(tmp_path / "trace.json", predicted, [MeasuredGroup(0, 0.1, 0.2, 0.3, 0.6, 0.7)])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == 4 * (len(plan.groups) + 1)
    measured = [event for event in drawn if event["pid"] == 2]
    assert [event["ts"] for event in measured] == pytest.approx([0, 1e5, 2e5, 6e5])
    assert measured[0]["dur"] == pytest.approx(1e5)  # backward, until its gradients were there
    assert all(event["dur"] >= 0 for event in drawn)
    with pytest.raises(ValueError, match="no timeline"):
        write_trace(tmp_path / "trace.json", plan)


def test_a_plan_is_a_file(tmp_path: Path) -> None:
    plan = work.plan_by_hand(work.built(), "topk:0.01", 2)
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    damaged = (tmp_path / "plan.json").read_text().replace("topk:0.01", "topk:0.02")
    (tmp_path / "plan.json").write_text(damaged)
    with pytest.raises(ValueError, match="checksum"):
        Plan.read(tmp_path / "plan.json")


def test_warm_up_falls_by_quarters() -> None:
    ratios = [warm_up_ratio(0.001, step, 8) for step in range(10)]
    assert ratios[0] == 0.25
    assert ratios[-1] == ratios[8] == 0.001
    assert ratios == sorted(ratios, reverse=True)
    assert warm_up_ratio(0.5, 0, 8) == 0.5
    assert warm_up_ratio(0.01, 0, 0) == 0.01


def test_small_tensors_go_as_they_are_in_one_run() -> None:
    codec = algorithm("sign").codec
    assert codec is not None
    parts = parts_of([SMALL, 3, 0, 4, SMALL + 1, 5], codec)
    assert [length for _, length in parts] == [SMALL, 7, SMALL + 1, 5]
    assert [isinstance(part_codec, type(codec)) for part_codec, _ in parts] == [True, False, True, False]
    assert FINE == 0  # fresh payloads say so


@pytest.mark.parametrize("sizes", [[10], [3, 4, 5], [0, 1, 0], [1000, 1, 1, 7]])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_slices_hold_every_value_once(sizes: list[int], n: int) -> None:
    slices = slices_of(sizes, n)
    assert len(slices) == n
    assert sum(map(sum, slices)) == sum(sizes)
    assert max(map(sum, slices)) - min(map(sum, slices)) <= 1


def test_ddp_cuts_after_one_and_then_25_mib() -> None:
    mib = 1024**2 // 4
    assert ddp_ends([mib // 2, mib // 2, mib, 30 * mib, 5]) == (2, 4, 5)
    assert ddp_ends([5, 6]) == (2,)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("float32", "'none' here"),
        ("topk:2", "0 < ratio"),
        ("dgc", "dgc|topk"),
        ("dgc:0.1:x", "give dgc:RATIO or dgc:RATIO:masked"),
        ("wavelet", "none, or dgc:RATIO"),
    ],
)
def test_unknown_codecs_are_refused(spec: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        algorithm(spec)


def test_unbiased_codecs_are_fitted_only_under_feedback() -> None:
    assert str(algorithm("ternary").codec).startswith("Fitted")
    assert not str(algorithm("ternary", feedback=False).codec).startswith("Fitted")
    assert not algorithm("topk:0.01", feedback=False).memory


def test_a_profile_needs_something_to_learn() -> None:
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that is trained"):
        gradients.profile(model, None, work.loss_of, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps is 1"):
        gradients.profile(model, None, work.loss_of, None, steps=1)  # type: ignore[arg-type]


def test_all_that_momentum_would_have_moved_goes_out_in_the_end() -> None:
    """With momentum correction alone, the sum of what was sent and is owed is that of momentum's own steps."""
    kept = memory_for(MOMENTUM, ["weight"], [600], {}, 0.9, torch.device("cpu"))
    velocity, moved, gone = torch.zeros(600), torch.zeros(600), torch.zeros(600)
    for step in range(20):
        gradient = torch.randn(600, generator=torch.Generator().manual_seed(step))
        velocity = 0.9 * velocity + gradient
        moved += velocity
        out = kept.compensate(gradient)
        sent = torch.where(out.abs() >= out.abs().topk(6).values[-1], out, 0.0)
        kept.sent(lambda x, sent=sent: x.add_(sent))  # type: ignore[misc]
        kept.commit()
        gone += sent
    assert torch.allclose(gone + kept.tensors()[RESIDUAL], moved, atol=1e-4)
    assert torch.allclose(kept.tensors()[MOMENTUM], velocity, atol=1e-5)


def test_small_tensors_keep_their_momentum_where_it_is_masked() -> None:
    """They always go out whole: masked like the rest, their velocity would never be more than a gradient."""
    kept = memory_for(MASKED, ["bias", "weight"], [3, 600], {}, 0.9, torch.device("cpu"))
    gradient = torch.ones(603)
    velocity = 0.0
    for _ in range(5):
        velocity = 0.9 * velocity + 1
        out = kept.compensate(gradient).clone()
        assert torch.allclose(out[:3], torch.full((3,), velocity))
        sent = torch.zeros(603)
        sent[:5] = out[:5]  # all of the bias, two of the weight's values
        kept.sent(lambda x, sent=sent: x.add_(sent))  # type: ignore[misc]
        kept.commit()
        assert out[3] == 1.0  # sent each time: its velocity starts anew
    assert float(kept.tensors()[MOMENTUM][4]) == 0.0
    assert float(kept.tensors()[MOMENTUM][600]) == pytest.approx(velocity)
