"""Nearest never loses more than the row, loses little of rows as they are, and feeds its error back."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import every_codec, normal
from thinwire.codecs import Codec, ErrorFeedback, Nearest, Uniform
from thinwire.codecs.kernels import kernels_for, native, twins_only

BITS = (1, 2, 4, 8)


def left_of(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    """The squares left of each row, double [N]."""
    return (x.double() - codec.decode(codec.encode(x), x.shape).double()).square().sum(dim=1)


def squares(x: torch.Tensor) -> torch.Tensor:
    return x.double().square().sum(dim=1)


def halves_of_zeros(*shape: int) -> torch.Tensor:
    """Differences after ReLU: half of both ends' values are zero, not all in the same places."""
    before = normal(*shape)
    return (before + 0.3 * normal(*shape, seed=1)).relu() - before.relu()


@pytest.mark.parametrize("width", [0, 1, 7, 8, 9, 47, 128, 256])
@pytest.mark.parametrize("bits", BITS)
def test_bytes_are_those_of_uniform(bits: int, width: int) -> None:
    assert (
        Nearest(bits).nbytes((1000, width)) == Uniform(bits).nbytes((1000, width)) == 1000 * (-(-width * bits // 8) + 4)
    )


# Of Gaussian rows in the mean, and of differences after ReLU: the shares of the squares that may be left.
@pytest.mark.parametrize(
    ("bits", "of_gaussian", "of_sparse"), [(1, 0.364, 0.52), (2, 0.12, 0.16), (4, 0.0125, 0.0125), (8, 6e-5, 1e-4)]
)
@pytest.mark.parametrize("width", [47, 128, 256])
def test_what_is_left_of_rows_as_they_are(width: int, bits: int, of_gaussian: float, of_sparse: float) -> None:
    for x, bound in ((normal(500, width), of_gaussian), (halves_of_zeros(500, width), of_sparse)):
        left = left_of(Nearest(bits), x).sum() / squares(x).sum()
        assert float(left) < bound
        # Uniform(1) loses more than the row, and so does the nearest of its grid at 2 bits in a row with a tail.
        assert float(left) < 0.55 * float(left_of(Uniform(bits), x).sum() / squares(x).sum())


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=80),
    repeats=st.sampled_from([1, 1, 1, 50]),
)
def test_any_finite_row_gets_no_larger(values: list[float], repeats: int) -> None:
    x = torch.tensor([values * repeats])
    for bits in BITS:
        try:
            left = left_of(Nearest(bits), x)
        except ValueError:
            assert bits > 1
            assert float(x.abs().max()) > 5e37
            continue
        assert float(left) <= float(squares(x)) * (1 + 1e-6)
        if bits == 1:
            y = x.double() - x.double().mean()
            bound = y.square().sum() - x.numel() * y.abs().mean().square()
            # bfloat16 adds 2^-8 of each of the two values; near the ends of float32 more.
            rounding = squares(x) * 2**-16 if 1e-37 < float(x.abs().max()) < 3e38 else squares(x)
            assert float(left) <= float(bound + rounding) + float(squares(x)) * 1e-6


@pytest.mark.parametrize("bits", BITS)
def test_wide_rows_that_are_nearly_all_zeros(bits: int) -> None:
    """Zeros that lie between two codes would cost more than the few values that made the grid."""
    for width in (600, 100_000):
        x = torch.zeros(4, width)
        x[0, 3], x[0, 5] = -1.0, 1.001
        x[1, 7] = 5.0
        x[2, ::1000] = normal(len(x[2, ::1000]))
        x[3] = normal(width) * 1e-3 - 1.0
        assert bool((left_of(Nearest(bits), x) <= squares(x) * (1 + 1e-6)).all())


@pytest.mark.parametrize("bits", BITS)
def test_a_constant_row_is_rounded_to_bfloat16(bits: int) -> None:
    values = torch.tensor([0.0, 1.5, -3.0, 2.0**-126, 2.0**100, 3.3, -1e30])[:, None].expand(7, 33)
    rounded = values.to(torch.bfloat16).float()
    decoded = Nearest(bits).decode(Nearest(bits).encode(values), values.shape)
    if bits < 8:
        assert torch.equal(decoded, rounded)
    else:  # the row's minimum is rounded down, and a step leads back to it
        assert bool(((decoded - values).abs() <= values.abs() * 2**-7 / 255).all())


@pytest.mark.parametrize("bits", BITS)
def test_two_values_come_back_at_one_bit_and_a_few_on_a_line_at_more(bits: int) -> None:
    codes = torch.arange(90).view(9, 10) * 7 % 2**bits
    codes[:, :2] = torch.tensor([0, 2**bits - 1])
    x = codes * 0.5 - 3.0
    assert torch.equal(Nearest(bits).decode(Nearest(bits).encode(x), x.shape), x)


@pytest.mark.parametrize("width", [1, 9, 47, 256])
def test_the_errors_foretold_are_those_left(width: int) -> None:
    x = torch.cat((normal(20, width), halves_of_zeros(20, width), normal(20, width) ** 5, normal(5, width) * 1e-30))
    errors = torch.empty(len(x), 5, dtype=torch.float64)
    kernels_for(x).nearest_errors(x, errors)
    torch.testing.assert_close(errors[:, 0], squares(x), rtol=1e-6, atol=0)
    for column, bits in enumerate(BITS, start=1):
        # The line's error is a difference of sums: exact to float32's rounding of the row's squares.
        assert bool(((errors[:, column] - left_of(Nearest(bits), x)).abs() <= 2e-6 * squares(x)).all())


@pytest.mark.parametrize("position", range(len(every_codec(9))), ids=[str(codec) for codec in every_codec(9)])
def test_a_difference_is_subtracted_encoded_and_added(position: int) -> None:
    codec = every_codec(9)[position]
    x, copy = normal(9, 33), normal(9, 33, seed=1)
    if isinstance(codec, ErrorFeedback):
        with pytest.raises(ValueError, match=re.escape("is in the copies already; use TopK(0.1)")):
            codec.encode_difference(x, copy)
        return
    expected = copy.clone()
    data = codec.encode(x - expected, seed=3)
    codec.add(data, expected, seed=3)
    buffer = torch.full_like(data, 7)
    assert codec.encode_difference(x, copy, seed=3, out=buffer) is buffer
    assert torch.equal(buffer, data)
    assert torch.equal(copy.view(torch.int32), expected.view(torch.int32))
    with twins_only():
        again = normal(9, 33, seed=1)
        assert torch.equal(codec.encode_difference(x, again, seed=3), data)
        assert torch.equal(again.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_differences_on_every_instruction_set(isa: str) -> None:
    module = native()
    assert module is not None
    if not module.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    try:
        for width in (1, 15, 16, 17, 63, 65, 129):
            for bits in BITS:
                x, copy = normal(9, width), normal(9, width, seed=1)
                twin = copy.clone()
                data = Nearest(bits).encode_difference(x, copy)
                with twins_only():
                    assert torch.equal(Nearest(bits).encode_difference(x, twin), data)
                assert torch.equal(copy.view(torch.int32), twin.view(torch.int32))
    finally:
        module.set_isa("best")


def test_a_wrong_copy_is_refused() -> None:
    x = normal(9, 33)
    for wrong in (normal(33, 9), normal(33, 9).t(), normal(9, 33).double(), x):
        with pytest.raises(ValueError, match="encode_difference: copy"):
            Nearest(1).encode_difference(x, wrong)
    with pytest.raises(ValueError, match=r"row 2 of shape \(9, 33\) is not finite \(nan"):
        Nearest(1).encode_difference(x.index_fill(0, torch.tensor(2), torch.nan), normal(9, 33))


@pytest.mark.parametrize(("bits", "share"), [(1, 0.61), (2, 0.36), (4, 0.12), (8, 0.02)])
def test_two_ends_come_nearer_step_by_step(bits: int, share: float) -> None:
    x = normal(50, 128)
    sender, receiver = torch.zeros_like(x), torch.zeros_like(x)
    before = float(x.norm())
    for step in range(6):
        receiver = Nearest(bits).add(Nearest(bits).encode_difference(x, sender), receiver)
        assert torch.equal(sender, receiver)
        left = float((x - receiver).norm())
        # Two-valued differences get flatter as they are cut: later steps take less than the first.
        assert left <= before * (share if step == 0 else 0.9)
        before = left
        if left < 1e-4 * float(x.norm()):
            break
