"""Uniform is unbiased to the letter, has the formula's variance, and survives any range."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import normal
from thinwire.codecs import Mixed, Uniform

BITS = (1, 2, 4, 8)


def grid_on_the_wire(codec: Uniform, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(low, step) of each row, read from the bytes by hand, float64 [N, 1]."""
    data = codec.encode(x).view(x.shape[0], -1)
    parameters = data[:, -4:].flatten().clone().view(torch.bfloat16).view(-1, 2).double().numpy()
    return parameters[:, :1], parameters[:, 1:]


@pytest.mark.parametrize("width", [1, 7, 8, 9, 47, 128, 256, 512])
@pytest.mark.parametrize("bits", BITS)
def test_bytes_are_the_papers(bits: int, width: int) -> None:
    assert Uniform(bits).nbytes((1000, width)) == 1000 * (-(-width * bits // 8) + 4)


def test_ratios_to_float32() -> None:
    ratios = [
        [round(4 * width / Uniform(bits).nbytes((1, width)), 1) for bits in BITS] for width in (47, 128, 256, 512)
    ]
    assert ratios == [[18.8, 11.8, 6.7, 3.7], [25.6, 14.2, 7.5, 3.9], [28.4, 15.1, 7.8, 3.9], [30.1, 15.5, 7.9, 4.0]]


@pytest.mark.parametrize("offset", [0.0, 3.0, -100.0])
@pytest.mark.parametrize("bits", BITS)
def test_mean_is_the_input_and_variance_the_formula(bits: int, offset: float) -> None:
    codec = Uniform(bits)
    x = normal(6, 96) + offset
    low, step = grid_on_the_wire(codec, x)
    fraction = np.modf((x.double().numpy() - low) / step)[0]
    variance = fraction * (1 - fraction) * step**2
    num_seeds = 4000
    total = np.zeros(x.shape)
    squares = np.zeros(x.shape)
    for seed in range(num_seeds):
        error = (codec.decode(codec.encode(x, seed=seed), x.shape) - x).double().numpy()
        total += error
        squares += error**2
    # Each value by itself, each row's sum, and all of it: a bias of a thousandth of a step would show in the last.
    float_error = np.abs(x.numpy()).max() * 2.0**-22
    for axis in (None, 1, (0, 1)):
        mean = (total if axis is None else total.sum(axis=axis)) / num_seeds
        spread = np.sqrt((variance if axis is None else variance.sum(axis=axis)) / num_seeds)
        room = float_error * (1 if axis is None else total.size)
        assert np.all(np.abs(mean) <= 5.5 * spread + room), f"axis {axis}"
    measured = squares.sum(axis=1) / num_seeds
    np.testing.assert_allclose(measured, variance.sum(axis=1), rtol=0.05)
    np.testing.assert_allclose(codec.variance(x).numpy(), variance.sum(axis=1), rtol=1e-3)


def test_bias_of_rounding_parameters_afterwards_would_be_seen() -> None:
    """The methods file's example: N(3, 1), 8 bits. Rounding the grid after quantizing gives a row bias of 0.0039."""
    x = normal(200, 256) + 3
    mean = torch.stack([Uniform(8).decode(Uniform(8).encode(x, seed=s), x.shape) - x for s in range(200)]).mean(dim=0)
    assert float(mean.mean(dim=1).abs().mean()) < 0.0001


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=70),
    bits=st.sampled_from(BITS),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_grid_covers_the_row_and_the_error_is_below_a_step(values: list[float], bits: int, seed: int) -> None:
    codec = Uniform(bits)
    x = torch.tensor([values])
    low, step = grid_on_the_wire(codec, x)
    lowest, highest = float(x.min()), float(x.max())
    levels = 2**bits - 1
    assert low[0, 0] <= lowest
    assert low[0, 0] + levels * step[0, 0] >= highest
    bound = max((highest - lowest + abs(lowest) * 2**-7) * (1 + 2**-7) / levels, 2.0**-125)
    assert step[0, 0] <= bound
    decoded = codec.decode(codec.encode(x, seed=seed), x.shape)
    error = (decoded.double() - x.double()).abs()
    assert float(error.max()) <= step[0, 0] + float(x.abs().max()) * 2**-22


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("scale", [1e-30, 1e-38, 1.0, 1e30])
def test_any_range_survives(bits: int, scale: float) -> None:
    codec = Uniform(bits)
    x = normal(50, 64) * scale
    decoded = codec.decode(codec.encode(x), x.shape)
    assert bool(torch.isfinite(decoded).all())
    step = (x.amax(dim=1) - x.amin(dim=1)) / (2**bits - 1)
    assert bool(((decoded - x).abs().amax(dim=1) <= step * 1.05 + 2.0**-125).all())


@pytest.mark.parametrize("bits", BITS)
def test_constant_rows(bits: int) -> None:
    exact = torch.tensor([0.0, -0.0, 1.0, -2.5, 2.0**100])  # bfloat16 holds these
    x = exact[:, None].expand(5, 33)
    assert torch.equal(Uniform(bits).decode(Uniform(bits).encode(x), x.shape), x)
    x = torch.full((1, 64), 3.3)
    draws = torch.stack([Uniform(bits).decode(Uniform(bits).encode(x, seed=seed), x.shape) for seed in range(500)])
    assert float((draws - 3.3).abs().max()) < 3.3 * 2**-7
    torch.testing.assert_close(float(draws.double().mean()), 3.3, rtol=2e-5, atol=0)


def test_values_on_the_grid_come_back_exactly() -> None:
    x = torch.arange(256.0)[None] * 0.5 - 3
    for seed in range(20):
        assert torch.equal(Uniform(8).decode(Uniform(8).encode(x, seed=seed), x.shape), x)


def test_a_rows_bytes_stand_alone() -> None:
    codec = Uniform(2)
    x = normal(9, 37)
    data = codec.encode(x).view(9, -1)
    whole = codec.decode(data.flatten(), x.shape)
    for row in range(9):
        assert torch.equal(codec.decode(data[row].clone(), (1, 37))[0], whole[row])


def test_seeds_matter() -> None:
    x = normal(9, 37)
    assert torch.equal(Uniform(1).encode(x, seed=1), Uniform(1).encode(x, seed=1))
    assert not torch.equal(Uniform(1).encode(x, seed=1), Uniform(1).encode(x, seed=2))


@pytest.mark.parametrize("bits", BITS)
def test_mixed_with_one_width_is_uniform(bits: int) -> None:
    x = normal(9, 37)
    assert torch.equal(Mixed([bits] * 9).encode(x, seed=4), Uniform(bits).encode(x, seed=4))


def test_mixed_rows() -> None:
    widths = [0, 1, 2, 4, 8, 16, 32, 0]
    codec = Mixed(torch.tensor(widths))
    x = normal(8, 37)
    assert codec.nbytes(x.shape) == 0 + (5 + 4) + (10 + 4) + (19 + 4) + (37 + 4) + (74 + 4) + 148 + 0
    data = codec.encode(x, seed=4)
    held = torch.full((8, 37), 7.0)
    codec.decode(data, x.shape, out=held)
    assert torch.equal(held[[0, 7]], torch.full((2, 37), 7.0))  # not sent: what was there stays
    assert torch.equal(codec.decode(data, x.shape)[[0, 7]], torch.zeros(2, 37))
    assert torch.equal(held[6], x[6])
    errors = (held[1:7] - x[1:7]).abs().amax(dim=1)
    ranges = x[1:7].amax(dim=1) - x[1:7].amin(dim=1)
    assert bool((errors <= ranges * 1.05 / torch.tensor([1, 3, 15, 255, 65535, 1e9])).all())
    for row in range(1, 5):
        alone = Uniform(widths[row]).encode(x, seed=4).view(8, -1)[row]
        begin = sum(Mixed([width]).nbytes((1, 37)) for width in widths[:row])
        assert torch.equal(data[begin : begin + len(alone)], alone)


def test_mixed_at_16_bits_is_unbiased() -> None:
    x = normal(3, 50)
    codec = Mixed([16, 16, 16])
    mean = torch.stack([codec.decode(codec.encode(x, seed=s), x.shape).double() - x for s in range(2000)]).mean(dim=0)
    step = (x.amax(dim=1) - x.amin(dim=1)) * 1.05 / 65535
    assert bool((mean.abs().amax(dim=1) < 5 * step * (0.25 / 2000) ** 0.5 + 2.0**-22).all())
