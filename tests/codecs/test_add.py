"""Adding is decoding and then adding, bit for bit; what is refused changes nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import every_codec, normal
from thinwire.codecs import Budget, Codec, ErrorFeedback, Identity, Mixed, RandomK, Sign, TopK, Uniform
from thinwire.codecs.base import Shape
from thinwire.codecs.kernels import twins_only

NAMES = [str(codec) for codec in every_codec(3)]
SHAPES = [(), (0,), (1,), (7,), (8,), (9,), (65537,), (9, 33), (0, 4), (4, 0), (2, 3, 5)]


class Plain(Codec):
    """A codec that says nothing about adding."""

    def nbytes(self, shape: Shape) -> int:
        return Identity().nbytes(shape)

    def _encode(self, x: torch.Tensor, seed: int, out: torch.Tensor) -> bool:
        return Identity()._encode(x, seed, out)

    def _decode(self, data: torch.Tensor, seed: int, out: torch.Tensor) -> bool:
        return bool(data.any()) and Identity()._decode(data, seed, out)


def start(*shape: int) -> torch.Tensor:
    """Values of any sign, among them -0.0."""
    values = normal(*shape, seed=7)
    return torch.where(values.abs() < 0.4, -0.0, values)


def codec_for(position: int, shape: tuple[int, ...]) -> Codec:
    return every_codec(torch.Size(shape[:-1]).numel())[position]


def is_sparse(codec: Codec) -> bool:
    return isinstance(codec, TopK | RandomK) or (isinstance(codec, ErrorFeedback) and is_sparse(codec.codec))


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_adding_is_decoding_and_then_adding(position: int, shape: tuple[int, ...]) -> None:
    codec = codec_for(position, shape)
    data = codec.encode(normal(*shape), seed=5)
    decoded = codec.decode(data, shape, seed=5)
    out = start(*shape)
    assert codec.add(data, out, seed=5) is out
    expected = start(*shape) + decoded
    assert torch.equal(out, expected)
    if isinstance(codec, Mixed | Budget):
        bits_N = codec.bits if isinstance(codec, Mixed) else codec.sent(data, shape)
        kept = (bits_N == 0).repeat_interleave(decoded.numel() // max(1, len(bits_N))).view(shape)
    else:
        kept = decoded == 0 if is_sparse(codec) else torch.zeros(shape, dtype=torch.bool)
    with_kept = torch.where(kept, start(*shape), expected).view(torch.int32)
    assert torch.equal(out.view(torch.int32), with_kept)


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 257])
def test_at_any_address(position: int, count: int) -> None:
    codec = codec_for(position, (count,))
    size = codec.nbytes((count,))
    plain = codec.encode(normal(count), seed=3)
    expected = codec.add(plain, start(count), seed=3)
    for offset in range(4):
        message = torch.zeros(size + 4, dtype=torch.uint8)
        message[offset : offset + size] = plain
        memory = torch.full((count + 8,), 5.0)
        out = memory[offset : offset + count].copy_(start(count))
        codec.add(message[offset : offset + size], out, seed=3)
        assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
        assert bool((memory[:offset] == 5).all())
        assert bool((memory[offset + count :] == 5).all())


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_what_does_not_fit_is_refused(position: int) -> None:
    codec = codec_for(position, (9, 33))
    data, out = codec.encode(normal(9, 33)), start(9, 33)
    for wrong in (data[:-1], torch.cat((data, data[:1])), data[:0]):
        with pytest.raises(ValueError, match=rf"add: data for shape \(9, 33\): given .*shape \({len(wrong)},\)"):
            codec.add(wrong, out)
    for wrong in (torch.zeros(33, 9).t(), torch.zeros(9, 33, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"add: out: given .*expected contiguous torch.float32"):
            codec.add(data, wrong)
    with pytest.raises(ValueError, match="give a whole number"):
        codec.add(data, out, seed=-1)
    assert torch.equal(out.view(torch.int32), start(9, 33).view(torch.int32))


def test_out_must_not_overlap_what_is_read() -> None:
    memory = normal(20)
    with pytest.raises(ValueError, match="add: out shares memory with what is being read"):
        Identity().add(memory.view(torch.uint8)[8:48], memory[:10])


def test_a_codec_that_says_nothing_about_adding_adds_too() -> None:
    out = start(9)
    Plain().add(Plain().encode(normal(9)), out)
    assert torch.equal(out, start(9) + normal(9))
    with pytest.raises(ValueError, match=r"add: these 36 bytes were not made by .* for shape \(9,\)"):
        Plain().add(torch.zeros(36, dtype=torch.uint8), out)
    assert torch.equal(out, start(9) + normal(9))


@settings(max_examples=300, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=20), data=st.data())
def test_damaged_positions_are_refused_before_anything_is_added(
    damage: list[tuple[int, int]], data: st.DataObject
) -> None:
    count = data.draw(st.sampled_from([1, 9, 100, 1000]))
    codec = TopK(data.draw(st.sampled_from([0.01, 0.1, 0.7])))
    bytes_ = codec.encode(normal(count))
    values_end = 4 * -(-count * int(codec.ratio * 100) // 100)
    for place, value in damage:
        bytes_[values_end + place % (len(bytes_) - values_end)] = value
    try:
        expected = start(count) + codec.decode(bytes_, (count,))
    except ValueError:
        expected = start(count)

    def attempt(out: torch.Tensor) -> bool:
        try:
            codec.add(bytes_, out)
        except ValueError:
            return False
        return True

    guarded = torch.full((count + 64,), 5.0)
    out = guarded[32:-32].copy_(start(count))
    accepted = attempt(out)
    assert torch.equal(out, expected)
    assert bool((guarded[:32] == 5).all())
    assert bool((guarded[-32:] == 5).all())
    with twins_only():
        twin = start(count)
        assert attempt(twin) == accepted
    assert torch.equal(twin.view(torch.int32), out.view(torch.int32))


def test_a_position_sent_twice_is_refused() -> None:
    # k = 2 of 8: two low bits each, then marks at (position >> 2) + rank.
    codec, values = TopK(0.25), torch.tensor([1.0, 2.0]).view(torch.uint8)
    good = torch.cat((values, torch.tensor([0b0100, 0b011], dtype=torch.uint8)))
    assert codec.decode(good, (8,)).tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
    for low in (0b0101, 0b0001):  # position 1 twice; 1 and then 0
        bad = torch.cat((values, torch.tensor([low, 0b011], dtype=torch.uint8)))
        for _ in range(2):
            with pytest.raises(ValueError, match="were not made by"):
                codec.decode(bad, (8,))
            with twins_only(), pytest.raises(ValueError, match="were not made by"):
                codec.add(bad, torch.zeros(8))


@pytest.mark.parametrize("codec", [Sign(), TopK(0.1), Uniform(4)], ids=str)
def test_payloads_of_many_ranks_add_up(codec: Codec) -> None:
    gradients = [normal(1000, seed=rank) for rank in range(5)]
    total = torch.zeros(1000)
    for rank, gradient in enumerate(gradients):
        codec.add(codec.encode(gradient, seed=rank), total, seed=rank)
    expected = sum(codec.decode(codec.encode(g, seed=r), (1000,), seed=r) for r, g in enumerate(gradients))
    assert torch.equal(total, torch.as_tensor(expected))


@pytest.mark.parametrize("position", range(len(NAMES)), ids=NAMES)
def test_the_seed_changes_nothing_where_a_codec_says_so(position: int) -> None:
    x = normal(9, 33)
    same = torch.equal(codec_for(position, x.shape).encode(x, seed=1), codec_for(position, x.shape).encode(x, seed=2))
    assert same != codec_for(position, x.shape).uses_seed
