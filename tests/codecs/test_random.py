"""The mixing function is uniform and unrelated along columns, rows and seeds; kernels and twins draw the same."""

import numpy as np
import pytest
import torch
from scipy import stats

from thinwire.codecs.twins.random import mix, row_keys, to_unit, uniform

ROWS = torch.arange(2000)


def draws(along: str) -> torch.Tensor:
    """[2000, 512] draws whose last dimension runs along columns, rows or seeds."""
    if along == "columns":
        return uniform(5, ROWS, 512)
    if along == "rows":
        return uniform(5, torch.arange(512), 2000).t()
    return torch.stack([uniform(seed, torch.arange(1), 2000)[0] for seed in range(512)], dim=1)


@pytest.mark.parametrize("along", ["columns", "rows", "seeds"])
def test_values_are_uniform(along: str) -> None:
    u = draws(along)
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    # The upper, middle and lower byte of the 24 bits, each over all draws and over each line by itself.
    for scale in (2**8, 2**16, 2**24):
        byte = (u * scale).to(torch.int64) % 256
        counts = torch.bincount(byte.flatten(), minlength=256).numpy()
        assert stats.chisquare(counts).pvalue > 1e-6, f"byte at {scale}"
    per_line = u.double().mean(dim=1)
    z = (per_line - 0.5) * (12 * u.shape[1]) ** 0.5
    assert float(z.abs().max()) < 5.5
    torch.testing.assert_close(float(z.var()), 1.0, atol=0.2, rtol=0)


@pytest.mark.parametrize("along", ["columns", "rows", "seeds"])
def test_neighbours_are_unrelated(along: str) -> None:
    u = draws(along).double() - 0.5
    for lag in (1, 2, 16, 64, 256):
        correlation = float((u[:, :-lag] * u[:, lag:]).mean()) * 12
        bound = 5 / (u.shape[0] * (u.shape[1] - lag)) ** 0.5
        assert abs(correlation) < bound, f"lag {lag}"


def test_pairs_of_neighbours_fill_the_square() -> None:
    u = uniform(1, ROWS, 512)
    cells = (u[:, :-1:2] * 16).to(torch.int64) * 16 + (u[:, 1::2] * 16).to(torch.int64)
    assert stats.chisquare(torch.bincount(cells.flatten(), minlength=256).numpy()).pvalue > 1e-6


def test_low_and_high_bits_of_the_hash_are_unrelated() -> None:
    """Small fractions hang on both ends of the 31 bits at once."""
    low, high = row_keys(1, ROWS)
    x = mix(low[:, None], high[:, None], torch.arange(512, dtype=torch.int32))
    for low_bit in (1, 4, 8, 12):
        cells = ((x >> 28) & 15) * 16 + ((x >> low_bit) & 15)
        counts = torch.bincount(cells.flatten(), minlength=256).numpy()
        assert stats.chisquare(counts).pvalue > 1e-6, f"bits from {low_bit}"


def test_one_bit_of_any_input_changes_half_of_the_output() -> None:
    columns = torch.arange(4096, dtype=torch.int32)
    low, high = row_keys(7, torch.arange(1))
    before = mix(low, high, columns)
    for bit in range(20):
        changed = before ^ mix(low, high, columns ^ (1 << bit))
        # The upper 16 bits, on which most comparisons hang: each flips for about half of the columns.
        flips = torch.stack([((changed >> out) & 1).double().mean() for out in range(16, 32)])
        assert float((flips - 0.5).abs().max()) < 0.1, f"input bit {bit}"


@pytest.mark.parametrize("fraction", [1e-9, 3e-9, 1e-8, 1e-7, 2.0**-24])
def test_small_fractions_are_met_as_often_as_they_should_be(fraction: float) -> None:
    """u < fraction for as many of the hash's 2^31 values as come nearest to fraction * 2^31: counted, not drawn."""
    hashes = torch.arange(0, 2000, dtype=torch.int32) << 1
    met = int((to_unit(hashes) < fraction).sum())
    assert met < len(hashes)  # the count is complete: beyond these u only grows
    assert abs(met - fraction * 2**31) <= 0.5


def test_u_stays_inside_and_never_falls() -> None:
    largest = torch.tensor([-1, -2, -3, -(2**31), 2**31 - 1, 0], dtype=torch.int32)  # read as unsigned
    u = to_unit(largest)
    assert float(u.max()) < 1
    assert float(u.min()) > 0
    climbing = to_unit(torch.arange(-(2**31), -(2**31) + 100_000, dtype=torch.int64).to(torch.int32))
    assert bool((climbing.diff() >= 0).all())


def test_the_same_counter_gives_the_same_draw_in_any_chunk() -> None:
    whole = uniform(3, torch.arange(40), 70)
    parts = [uniform(3, torch.arange(begin, begin + 8), 70) for begin in (32, 0, 16, 24, 8)]
    assert torch.equal(torch.cat([parts[i] for i in (1, 4, 2, 3, 0)]), whole)
    assert torch.equal(uniform(3, torch.arange(40), 9), whole[:, :9])


def test_reference_values() -> None:
    """Pinned, so that two versions never disagree on a seed's meaning: computed by hand from the docstring."""

    def splitmix64(z: int) -> int:
        mask = 2**64 - 1
        z = (z + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def by_the_book(seed: int, row: int, column: int) -> float:
        mask = 2**32 - 1
        key = splitmix64((splitmix64(seed) + row) % 2**64)
        low, high = key & mask, key >> 32
        x = (column + low) & mask
        x = ((x ^ (x >> 16)) * 0x7FEB352D + high) & mask
        x = ((x ^ (x >> 15)) * 0x846CA68B) & mask
        rounded = np.float32(x >> 1) * np.float32(2**-31) + np.float32(2**-32)
        return min(float(rounded), 1 - 2**-24)

    for seed in (0, 1, 2**63 - 1):
        u = uniform(seed, torch.arange(5), 7)
        assert [[by_the_book(seed, row, column) for column in range(7)] for row in range(5)] == u.tolist()
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the published first output for seed 0
