"""The reduce-scatter: memory by parameter, every op, a loss scale, gradients that are not finite."""

import warnings
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.gradients.fsdp import work
from thinwire import launch
from thinwire.gradients import fsdp
from thinwire.gradients.fsdp.ops import factor_of
from thinwire.links import Door

PRELOAD = work.PRELOAD


def conserved(codecs: list[str], steps: int) -> dict[str, tuple[float, float]]:
    """By codec: how far what came plus what is owed is from what plain FSDP2 gave, and what came alone."""
    distances = {}
    plain, plain_none = work.summed(work.sharded(), dist.get_rank(), steps, work.in_turn)
    with Door() as door:
        for codec in codecs:
            model = fsdp.compress(work.sharded(), codec, door)
            came, none = work.summed(model, door.rank, steps, work.in_turn)
            assert none == plain_none
            state = fsdp.compression_of(model).state_dict()
            both = work.most([(came[name] + work.owed(state, name), plain[name]) for name in plain])
            distances[codec] = both, work.most([(came[name], plain[name]) for name in plain])
    return distances


def test_what_came_and_what_is_owed_make_the_gradient_whatever_branches_are_used() -> None:
    for distances in launch.run(conserved, ["topk:0.05", "sign", "uniform:4", "none"], 12, workers=2):
        for codec, (both, alone) in distances.items():
            assert both < 1e-5, codec
            assert (alone < 1e-5) == (codec == "none"), codec  # it does lose something


def learnt(codecs: list[str]) -> dict[str, tuple[float, float]]:
    """The loss before and after some steps."""
    losses_by_codec = {}
    with Door() as door:
        for codec in codecs:
            model = fsdp.compress(work.sharded(), codec, door)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            losses = []
            for step in range(15):
                optimizer.zero_grad()
                loss = work.loss_of(model, door.rank, step)
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
            losses_by_codec[codec] = losses[0], losses[-1]
    return losses_by_codec


def test_a_model_learns_by_every_codec() -> None:
    for losses_by_codec in launch.run(
        learnt, ["none", "bfloat16", "uniform:8", "topk:0.25", "sign", "qsgd:4"], workers=2
    ):
        for codec, (first, last) in losses_by_codec.items():
            assert last < first / 2, codec


class ByFactor(NamedTuple):
    """The distance to plain FSDP2's gradient under a divide factor: exact, and by 8 bits."""

    factor: float | None
    force: bool
    exact: float
    rough: float


def by_factor() -> list[ByFactor]:
    distances = []
    for factor in (None, 2.0, 3.0, 0.25):
        for force in (False, True):
            grads: list[dict[str, torch.Tensor]] = []
            for codec in ("", "none", "uniform:8"):
                model = work.sharded()
                if codec:
                    fsdp.compress(model, codec)
                for unit in (model, model.one, model.two, model.first):
                    if factor is not None:
                        unit.set_gradient_divide_factor(factor)  # type: ignore[operator]
                    # gloo has no PREMUL_SUM: there plain FSDP2 must divide by itself.
                    unit.set_force_sum_reduction_for_comms(force or not codec)  # type: ignore[operator]
                grads.append(work.summed(model, dist.get_rank(), 1, work.everything)[0])
            plain, exact, rough = grads
            off = [work.most([(reduced[name], plain[name]) for name in plain]) for reduced in (exact, rough)]
            distances.append(ByFactor(factor, force, off[0], off[1]))
    return distances


def test_gradients_are_divided_as_fsdp_was_told_to() -> None:
    for distances in launch.run(by_factor, workers=2):
        for factor, force, exact, rough in distances:
            assert exact < 1e-6, (factor, force)
            assert rough < 0.02, (factor, force)


def by_changing_factors(cases: list[tuple[str, str | None, bool]]) -> list[tuple[float, float]]:
    """As `conserved`, where each step has a divide factor of its own."""
    distances = []
    for kind, slow, force in cases:
        totals = []
        for codec in ("", "topk:0.05"):
            model = work.sharded(kind)
            if codec:
                fsdp.compress(model, codec, slow=slow)
            total = {name: torch.zeros_like(work.local(parameter)) for name, parameter in model.named_parameters()}
            for step, factor in enumerate((3.0, 2.0, 4.0, 0.25, 40.0)):  # 2 or 4 is the number of shards
                for unit in (model, model.one, model.two, model.first):
                    unit.set_gradient_divide_factor(factor)  # type: ignore[operator]
                    unit.set_force_sum_reduction_for_comms(force or not codec)  # type: ignore[operator]
                model.zero_grad()
                work.loss_of(model, dist.get_rank(), step).backward()
                for name, gradient in work.gradients_of(model).items():
                    assert gradient is not None
                    total[name] += gradient
            totals.append(total)
        plain, came = totals
        state = fsdp.compression_of(model).state_dict()
        both = work.most([(came[name] + work.owed(state, name, mean=False), plain[name]) for name in plain])
        distances.append((both, work.most([(came[name], plain[name]) for name in plain])))
    return distances


def test_what_is_owed_is_divided_as_when_it_came() -> None:
    cases = [("flat", None, False), ("flat", None, True), ("hsdp", None, True), ("hsdp", "shard", False)]
    for distances in launch.run(by_changing_factors, cases, workers=4):
        for case, (both, alone) in zip(cases, distances, strict=True):
            assert both < 1e-5, case
            assert alone > 1e-3, case


def by_half_precision(kind: str) -> list[tuple[int, bool]]:
    """Under a loss scale that grows: of each pass with a gradient beyond float16, how many were, and did memory change?

    Gradients themselves fit for long: what is remembered of many steps makes the sum too large.
    """
    steps: list[tuple[int, bool]] = []
    scaler = Scaler()
    model = work.sharded(kind, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
    compression = fsdp.compression_of(fsdp.compress(model, "topk:0.02", scaler=scaler))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for step in range(23):
            scaler.scale = 2.0 ** max(0, step - 8)
            before = compression.state_dict()
            model.zero_grad()
            out = model(work.batch(dist.get_rank(), 0))
            out.backward(torch.full_like(out, scaler.scale))
            grads = [gradient for gradient in work.gradients_of(model).values() if gradient is not None]
            overflows = torch.tensor(float(not all(bool(gradient.isfinite().all()) for gradient in grads)))
            dist.all_reduce(overflows)
            after = compression.state_dict()
            same = all(torch.equal(work.local(before[key]), work.local(after[key])) for key in before if "/" in key)
            if overflows:
                steps.append((compression.skipped - len(steps), not same))
    return steps


@pytest.mark.parametrize("kind", ["flat", "hsdp"])
def test_a_sum_that_overflows_is_remembered(kind: str) -> None:
    for steps in launch.run(by_half_precision, kind, workers=4):
        assert steps
        assert all(step == (1, False) for step in steps), steps


def test_other_operations_are_refused_by_name() -> None:
    assert factor_of(ReduceOp.SUM, 4) == factor_of(ReduceOp(ReduceOp.SUM), 4) == 1.0
    assert factor_of(ReduceOp.AVG, 4) == 0.25
    assert factor_of(ReduceOp.PREMUL_SUM(0.125), 4) == 0.125
    for op in (ReduceOp.MAX, ReduceOp(ReduceOp.PRODUCT)):
        with pytest.raises(ValueError, match=r"asks for ReduceOp.(MAX|PRODUCT); .*SUM, AVG or PREMUL_SUM"):
            factor_of(op, 4)


class Scaler:
    def __init__(self) -> None:
        self.scale = 1.0

    def get_scale(self) -> float:
        return self.scale


def scaled() -> bool:
    """Are gradients and memory the same, bit for bit, under a scale that changes?"""
    tensors: list[Any] = []
    with Door() as door:
        for scales in ((1.0, 1.0, 1.0, 1.0), (1024.0, 1024.0, 2.0, 65536.0)):
            scaler = Scaler()
            model = fsdp.compress(work.sharded(), "topk:0.1", door, scaler=scaler)
            scaled_back = []
            for step, scaler.scale in enumerate(scales):
                model.zero_grad()
                (work.loss_of(model, door.rank, step) * scaler.scale).backward()
                scaled_back += [
                    gradient / scaler.scale for gradient in work.gradients_of(model).values() if gradient is not None
                ]
            state = fsdp.compression_of(model).state_dict()
            tensors.append([*scaled_back, *(work.local(state[key]) for key in state)])
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def test_memory_does_not_know_the_loss_scale() -> None:
    assert launch.run(scaled, workers=2) == [True, True]


class Poisoned(NamedTuple):
    """What an infinite gradient in one unit of one rank does."""

    bad_units: list[str]
    same_memory: bool
    finite_later: bool
    skipped: int
    warnings: int


def poisoned() -> Poisoned:
    with Door() as door:
        model = work.sharded()
        fsdp.compress(model, "topk:0.05", door)
        compression = fsdp.compression_of(model)
        work.summed(model, door.rank, 2, work.everything)
        before = compression.state_dict()
        model.zero_grad()
        loss = work.loss_of(model, door.rank, 2)
        handle = None
        model.first.unshard()  # type: ignore[operator]
        if door.rank == 1:  # the last unit in backward: others have been sent by then
            handle = model.first.weight.register_hook(lambda grad: grad.fill_(torch.inf))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loss.backward()
        if handle is not None:
            handle.remove()
        grads = work.gradients_of(model)
        bad = [name for name, gradient in grads.items() if gradient is not None and not gradient.isfinite().all()]
        after = compression.state_dict()
        same = all(torch.equal(work.local(before[key]), work.local(after[key])) for key in before if "/" in key)
        total, _ = work.summed(model, door.rank, 1, work.everything)
        fine = all(bool(gradient.isfinite().all()) for gradient in total.values())
        return Poisoned(sorted({name.split(".")[0] for name in bad}), same, fine, compression.skipped, len(said))


def test_memory_is_as_it_was_where_a_gradient_is_not_finite() -> None:
    for result in launch.run(poisoned, workers=2):
        assert result.bad_units == ["first"]
        assert result.same_memory
        assert result.finite_later
        assert result.skipped == result.warnings == 1
