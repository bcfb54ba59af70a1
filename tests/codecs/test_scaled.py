"""Sign, Ternary and QSGD: what they send, that the random ones are unbiased, and their variances."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import normal
from thinwire.codecs import QSGD, Codec, Sign, Ternary

FLOATS = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=70)


def moments(codec: Codec, x: torch.Tensor, num_seeds: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.stack([codec.decode(codec.encode(x, seed=seed), x.shape).double() for seed in range(num_seeds)])
    return draws.mean(dim=0), draws.var(dim=0)


def test_sizes() -> None:
    assert Sign().nbytes((3, 11)) == 5 + 4
    assert Ternary().nbytes((3, 11)) == 9 + 4
    assert QSGD(8, bucket=10).nbytes((3, 11)) == 3 * (10 + 4) + (3 + 4)
    assert QSGD(4, bucket=512).nbytes((3, 11)) == 17 + 4
    assert QSGD(4, bucket=512).nbytes((0,)) == 0


@settings(max_examples=200, deadline=None)
@given(FLOATS)
def test_sign_is_the_mean_magnitude_and_a_contraction(values: list[float]) -> None:
    x = torch.tensor(values)
    decoded = Sign().decode(Sign().encode(x), x.shape).double()
    expected = torch.where(x >= 0, 1.0, -1.0).double() * x.double().abs().mean()
    torch.testing.assert_close(decoded, expected, rtol=1e-6, atol=1e-44)
    assert float((decoded - x.double()).norm()) <= float(x.double().norm()) * (1 + 1e-6)


def test_a_sum_of_many_does_not_drift() -> None:
    x = normal(2_000_003).abs() ** 4
    decoded = Sign().decode(Sign().encode(x), x.shape)
    torch.testing.assert_close(float(decoded[0]), float(x.double().mean()), rtol=1e-7, atol=0)


def test_one_huge_value_does_not_swallow_the_rest() -> None:
    x = torch.full((1_000_000,), 0.01)
    x[70_000] = 1e4
    scale = float(Sign().decode(Sign().encode(x), x.shape)[0])
    torch.testing.assert_close(scale, float(x.double().mean()), rtol=1e-6, atol=0)
    x = torch.full((1_000_000,), 1e-4)
    x[5] = 1.0
    norm = QSGD(8, bucket=1_000_000).encode(x)[-4:].clone().view(torch.float32)
    torch.testing.assert_close(float(norm), float(x.double().norm()), rtol=1e-6, atol=0)


def test_ternary_is_unbiased_with_the_formulas_variance() -> None:
    x = normal(200)
    most = float(x.abs().max())
    mean, variance = moments(Ternary(), x, 4000)
    exact = (x.abs() * (most - x.abs())).double()
    assert bool(((mean - x).abs() <= 5.5 * (exact / 4000).sqrt() + 1e-6).all())
    torch.testing.assert_close(float(variance.sum()), float(exact.sum()), rtol=0.03, atol=0)
    assert set((Ternary().decode(Ternary().encode(x), x.shape) / most).tolist()) <= {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("bucket", [64, 1000])
def test_qsgd_is_unbiased_with_the_formulas_variance(bits: int, bucket: int) -> None:
    x = normal(200)
    levels = 2 ** (bits - 1) - 1
    exact = torch.empty(200, dtype=torch.float64)
    for begin in range(0, 200, bucket):
        part = x[begin : begin + bucket].double()
        unit = part.norm() / levels
        fraction = torch.frac(part.abs() / unit)
        exact[begin : begin + bucket] = fraction * (1 - fraction) * unit**2
    mean, variance = moments(QSGD(bits, bucket=bucket), x, 4000)
    assert bool(((mean - x).abs() <= 5.5 * (exact / 4000).sqrt() + 1e-6).all())
    torch.testing.assert_close(float(variance.sum()), float(exact.sum()), rtol=0.05, atol=0)


@settings(max_examples=200, deadline=None)
@given(FLOATS, st.sampled_from([2, 4, 8]), st.integers(1, 80), st.integers(0, 2**63 - 1))
def test_errors_stay_within_the_stated_bound(values: list[float], bits: int, bucket: int, seed: int) -> None:
    x = torch.tensor(values)
    ternary = Ternary().decode(Ternary().encode(x, seed=seed), x.shape)
    assert float((ternary - x).abs().max()) <= float(x.abs().max()) * (1 + 1e-6)
    codec = QSGD(bits, bucket=bucket)
    error = (codec.decode(codec.encode(x, seed=seed), x.shape).double() - x.double()).abs()
    for begin in range(0, len(values), bucket):
        norm = max(float(x[begin : begin + bucket].double().norm()), 2.0**-100)
        assert float(error[begin : begin + bucket].max()) <= norm / (2 ** (bits - 1) - 1) * (1 + 1e-5)


def test_zeros_stay_zeros() -> None:
    x = torch.zeros(77)
    for codec in (Sign(), Ternary(), QSGD(4)):
        assert torch.equal(codec.decode(codec.encode(x), x.shape), x)
