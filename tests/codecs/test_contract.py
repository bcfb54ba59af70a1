"""What every codec owes its caller: exact sizes, any layout, repeatable bytes, errors that help."""

import re

import pytest
import torch

from tests.codecs.every import SIZES, every_codec, mixed_for, normal
from thinwire.codecs import (
    QSGD,
    BFloat16,
    Budget,
    Codec,
    Float16,
    Identity,
    Mixed,
    Nearest,
    RandomK,
    TopK,
    Uniform,
    seed_from,
)

NAMES = [str(codec) for codec in every_codec(3)]


def codec_at(position: int, num_rows: int) -> Codec:
    return every_codec(num_rows)[position]


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("width", SIZES)
def test_size_is_known_beforehand_and_shape_comes_back(position: int, width: int) -> None:
    for num_rows in SIZES:
        codec = codec_at(position, num_rows)
        x = normal(num_rows, width)
        data = codec.encode(x, seed=11)
        assert data.dtype == torch.uint8
        assert data.shape == (codec.nbytes(x.shape),)
        decoded = codec.decode(data, x.shape, seed=11)
        assert decoded.shape == x.shape
        assert decoded.dtype == torch.float32
        assert bool(torch.isfinite(decoded).all())


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 4), (4, 0)])
def test_any_rank(position: int, shape: tuple[int, ...]) -> None:
    num_rows = torch.Size(shape[:-1]).numel() if shape else 1
    codec = codec_at(position, num_rows)
    x = normal(*shape)
    assert codec.decode(codec.encode(x), shape).shape == shape


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_taken_as_the_float32_they_are(position: int, dtype: torch.dtype) -> None:
    x = normal(9, 33).to(dtype)
    assert torch.equal(codec_at(position, 9).encode(x), codec_at(position, 9).encode(x.float()))


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_layout_does_not_show(position: int) -> None:
    wide = normal(18, 66)
    for view in (wide[::2, ::2], wide.t()[:9, :33], wide[1:10, 5:38]):
        x = view[:9]
        assert torch.equal(codec_at(position, 9).encode(x), codec_at(position, 9).encode(x.clone().contiguous()))


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_out_buffers_at_any_address(position: int) -> None:
    x = normal(9, 33)
    codec = codec_at(position, 9)
    size = codec.nbytes(x.shape)
    plain = codec_at(position, 9).encode(x, seed=3)
    for offset in (0, 1, 3):
        buffer = torch.full((size + 8,), 0xAB, dtype=torch.uint8)
        data = codec_at(position, 9).encode(x, seed=3, out=buffer[offset : offset + size])
        assert data.data_ptr() == buffer.data_ptr() + offset
        assert torch.equal(data, plain)
        assert bool((buffer[:offset] == 0xAB).all())
        assert bool((buffer[offset + size :] == 0xAB).all())
        out = torch.zeros(9, 33)
        assert codec.decode(data, x.shape, seed=3, out=out) is out
        assert torch.equal(out, codec.decode(plain, x.shape, seed=3))


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_input_is_left_alone_and_needs_no_gradient(position: int) -> None:
    x = normal(9, 33).requires_grad_()
    before = x.detach().clone()
    data = codec_at(position, 9).encode(x)
    assert not data.requires_grad
    assert torch.equal(x.detach(), before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("width", [1, 33, 64, 257])
def test_a_value_that_is_not_finite_is_an_error_that_names_the_row(position: int, width: int, bad: float) -> None:
    # In Mixed row 6 has width 16, so it is sent.
    x = normal(9, width)
    x[6, width - 1] = bad
    codec = codec_at(position, 9)
    with pytest.raises(
        ValueError, match=rf"row 6 of shape \(9, {width}\) is not finite \({bad} at column {width - 1}\)"
    ):
        codec.encode(x)


def test_a_row_that_is_not_sent_may_hold_anything() -> None:
    x = normal(3, 5)
    x[1, 2] = float("nan")
    Mixed([8, 0, 8]).encode(x)


@pytest.mark.parametrize(
    ("codec", "limit"),
    [
        *((Float16(), 7e4), (BFloat16(), 3.4e38), (Uniform(1), 3e38), (Uniform(8), 3e38), (QSGD(8), 3e38)),
        *((Nearest(2), 3e38), (Nearest(4), 3e38), (Nearest(8), 3e38)),
    ],
)
def test_what_a_codec_cannot_hold_is_refused(codec: Codec, limit: float) -> None:
    x = normal(5, 8)
    x[3, :2] = torch.tensor([limit, -limit])
    with pytest.raises(ValueError, match=r"row 3 of shape \(5, 8\), with values up to .*; (use|scale)"):
        codec.encode(x)
    assert torch.equal(Identity().decode(Identity().encode(x), x.shape), x)


def test_one_bit_holds_any_finite_row() -> None:
    x = torch.tensor([[3.4e38, -3.4e38, 1.0], [1e-45, 0.0, -1e-45]])
    decoded = Nearest(1).decode(Nearest(1).encode(x), x.shape)
    assert decoded[0].tolist() == pytest.approx([1.7e38, -3.4e38, 1.7e38], rel=2**-8)
    assert bool((decoded[1].abs() <= 2.0**-134).all())


def test_qsgd_and_randomk_name_the_row_at_fault() -> None:
    x = torch.zeros(6, 4)
    x[0] = 2e38  # its norm overflows
    x[5, 0] = 3e38  # larger, but fine
    with pytest.raises(ValueError, match=r"row 0 of shape \(6, 4\).*norm beyond float32; scale it down"):
        QSGD(8, bucket=4).encode(x)
    x = torch.ones(3, 4)
    x[1] = 3e38
    with pytest.raises(ValueError, match=r"row 1 of shape \(3, 4\).*scaled by n / k"):
        RandomK(0.5, unbiased=True).encode(x)


def test_mixed_refuses_the_row_whose_width_is_at_fault() -> None:
    x = torch.full((4, 2), 3e38)
    x[:, 1] = -3e38
    with pytest.raises(ValueError, match=r"row 2 of shape \(4, 2\).*give it 32 bits"):
        Mixed([32, 0, 4, 32]).encode(x)


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_bytes_of_the_wrong_length_are_refused(position: int) -> None:
    codec = codec_at(position, 9)
    data = codec.encode(normal(9, 33))
    for wrong in (data[:-1], torch.cat((data, data[:1])), data[:0]):
        expected = rf"data for shape \(9, 33\): given .*shape \({len(wrong)},\).*expected .*shape \({len(data)},\)"
        with pytest.raises(ValueError, match=expected):
            codec.decode(wrong, (9, 33))
    with pytest.raises(ValueError, match=r"torch.int8"):
        codec.decode(data.view(torch.int8), (9, 33))


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_a_wrong_out_is_refused(position: int) -> None:
    codec = codec_at(position, 9)
    x = normal(9, 33)
    data = codec.encode(x)
    with pytest.raises(ValueError, match=r"encode: out"):
        codec.encode(x, out=torch.empty(codec.nbytes(x.shape) + 1, dtype=torch.uint8))
    for wrong in (torch.empty(33, 9), torch.empty(9, 33, dtype=torch.float64), torch.empty(33, 9).t()):
        with pytest.raises(ValueError, match=r"decode: out.*expected contiguous torch.float32"):
            codec.decode(data, x.shape, out=wrong)


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_other_dtypes_seeds_and_shapes_are_refused(position: int) -> None:
    codec = codec_at(position, 9)
    for dtype in (torch.float64, torch.int32, torch.complex64):
        with pytest.raises(ValueError, match=rf"x is {dtype}; give float32, float16 or bfloat16"):
            codec.encode(torch.zeros(9, 3, dtype=dtype))
    for seed in (-1, 2**63):
        with pytest.raises(ValueError, match=re.escape("0 <= seed < 2**63")):
            codec.encode(normal(9, 3), seed=seed)
    with pytest.raises(ValueError, match="negative size"):
        codec.nbytes((9, -1))


def test_wrong_settings_are_refused() -> None:
    for bits in (0, 3, 16, -1):
        with pytest.raises(ValueError, match=rf"Uniform\(bits={bits}\).*1, 2, 4 or 8"):
            Uniform(bits)
        with pytest.raises(ValueError, match=r"bits is 2, 4 or 8" if bits in (0, 3, 16, -1) else ""):
            QSGD(bits)
        with pytest.raises(ValueError, match=rf"Nearest\(bits={bits}\).*1, 2, 4 or 8"):
            Nearest(bits)
    for mean in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=rf"Budget\(bits={mean}\).*above 0"):
            Budget(mean)
    with pytest.raises(ValueError, match="at least one value"):
        QSGD(8, bucket=0)
    for ratio in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match="0 < ratio <= 1"):
            TopK(ratio)
        with pytest.raises(ValueError, match="0 < ratio <= 1"):
            RandomK(ratio)
    with pytest.raises(ValueError, match="row 1 has 3"):
        Mixed([1, 3])
    with pytest.raises(ValueError, match="it has shape"):
        Mixed(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="has 4 rows; give a width for each row"):
        mixed_for(3).nbytes((4, 8))


def test_numbers_that_are_not_whole_are_refused() -> None:
    with pytest.raises(ValueError, match="give whole numbers"):
        Mixed([1.7, 4.9])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        QSGD(8, bucket=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Identity().nbytes((2.9, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give a whole number"):
        Uniform(8).decode(torch.zeros(7, dtype=torch.uint8), (1, 3), seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="x is a list; give a tensor"):
        Identity().encode([1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", [1e-9, 1e-4])
def test_a_tiny_ratio_keeps_one_value(ratio: float) -> None:
    x = normal(10)
    for codec in (TopK(ratio), RandomK(ratio)):
        assert int((codec.decode(codec.encode(x), x.shape) != 0).sum()) == 1


def test_out_must_not_overlap_what_is_read() -> None:
    x = normal(4, 16)
    with pytest.raises(ValueError, match="shares memory with what is being read"):
        Identity().encode(x, out=x.view(-1).view(torch.uint8))
    memory = torch.zeros(64 + 8)
    data = Uniform(8).encode(x, out=memory.view(torch.uint8)[: Uniform(8).nbytes(x.shape)])
    with pytest.raises(ValueError, match="shares memory"):
        Uniform(8).decode(data, x.shape, out=memory[8:].view(4, 16))


def test_a_lazily_negated_tensor_is_sent_as_it_reads() -> None:
    x = normal(3, 5)
    assert torch.equal(Identity().decode(Identity().encode(torch._neg_view(x)), x.shape), -x)


def test_seeds_from_parts_differ() -> None:
    parts = [(run, epoch, layer) for run in range(10) for epoch in range(10) for layer in range(10)]
    seeds = {seed_from(*part) for part in parts} | {seed_from(), seed_from(1), seed_from(1, 0), seed_from(0, 1)}
    assert len(seeds) == len(parts) + 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_from(1, 2, 3) == seed_from(1, 2, 3)
    assert len({seed_from(*[0] * length) for length in range(6)}) == 6
