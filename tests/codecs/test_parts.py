"""A message of parts is its parts' messages one after another, and an error says in which part it is."""

import re

import pytest
import torch

from tests.codecs.every import every_codec, normal
from thinwire.codecs import (
    Codec,
    ErrorFeedback,
    Fitted,
    Identity,
    Mixed,
    Parts,
    RandomK,
    Sign,
    Ternary,
    TopK,
    Uniform,
    seed_from,
)
from thinwire.codecs.kernels import twins_only

PLAIN = [codec for codec in every_codec(1) if not isinstance(codec, ErrorFeedback)]
SIZES = (7, 0, 1, 9, 8, 257)


def many() -> list[tuple[Codec, int]]:
    """Every codec at every size, in an order that leaves hardly a payload at an even address."""
    return [(codec, size) for size in SIZES for codec in PLAIN] + [(Sign(), 65537), (TopK(0.01), 65537)]


def one_by_one(parts: list[tuple[Codec, int]], x: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(bytes, decoded), each part by itself."""
    payloads, decoded = [], []
    for number, ((codec, _), values) in enumerate(zip(parts, x.split([size for _, size in parts]), strict=True)):
        own_seed = seed_from(seed, number)
        payloads.append(codec.encode(values, seed=own_seed))
        decoded.append(codec.decode(payloads[-1], values.shape, seed=own_seed))
    return torch.cat(payloads), torch.cat(decoded)


def test_parts_are_their_payloads_one_after_another() -> None:
    parts = many()
    codec, count = Parts(parts), sum(size for _, size in parts)
    x = normal(count)
    expected, decoded = one_by_one(parts, x, seed=4)
    data = codec.encode(x, seed=4)
    assert len(data) == codec.nbytes((count,))
    assert torch.equal(data, expected)
    assert torch.equal(codec.decode(data, (count,), seed=4).view(torch.int32), decoded.view(torch.int32))
    assert torch.equal(codec.add(data, normal(count, seed=1), seed=4), normal(count, seed=1) + decoded)


def test_native_equals_twin_at_any_address() -> None:
    parts = many()
    codec, count = Parts(parts), sum(size for _, size in parts)
    x, size = normal(count), codec.nbytes((count,))
    with twins_only():
        expected = codec.encode(x, seed=4)
        decoded = codec.decode(expected, (count,), seed=4)
        added = codec.add(expected, x.clone(), seed=4)
    for offset in (0, 1, 3):
        memory, values = torch.zeros(size + 4, dtype=torch.uint8), torch.zeros(count + 4)
        data = codec.encode(x, seed=4, out=memory[offset : offset + size])
        out = values[offset : offset + count]
        assert torch.equal(data, expected)
        assert torch.equal(codec.decode(data, (count,), seed=4, out=out).view(torch.int32), decoded.view(torch.int32))
        assert torch.equal(codec.add(data, out.copy_(x), seed=4).view(torch.int32), added.view(torch.int32))


def test_seeds_of_parts_differ() -> None:
    codec = Parts([(Ternary(), 100), (Ternary(), 100), (RandomK(0.1), 100), (RandomK(0.1), 100)])
    x = normal(100).repeat(4)
    first, second, third, fourth = codec.decode(codec.encode(x, seed=9), (400,), seed=9).split(100)
    assert not torch.equal(first, second)
    assert not torch.equal(third != 0, fourth != 0)
    assert codec.uses_seed
    assert not Parts([(Sign(), 9), (TopK(0.1), 9)]).uses_seed


def test_nothing_and_parts_of_parts() -> None:
    assert Parts([]).nbytes((0,)) == 0
    assert Parts([]).decode(Parts([]).encode(torch.empty(0)), (0,)).shape == (0,)
    inner = Parts([(TopK(0.1), 30), (Uniform(4), 20)])
    outer = Parts([(Sign(), 10), (inner, 50)])
    x = normal(60)
    decoded = outer.decode(outer.encode(x, seed=2), (60,), seed=2)
    assert torch.equal(decoded[10:], inner.decode(inner.encode(x[10:], seed=seed_from(2, 1)), (50,), seed=0))
    assert outer.nbytes((60,)) == Sign().nbytes((10,)) + inner.nbytes((50,))


def test_rows_that_are_not_sent_are_zero_or_left() -> None:
    codec = Parts([(Mixed([0]), 3), (Identity(), 2)])
    data = codec.encode(torch.arange(5.0))
    assert codec.decode(data, (5,)).tolist() == [0, 0, 0, 3, 4]
    assert codec.decode(data, (5,), out=torch.ones(5)).tolist() == [1, 1, 1, 3, 4]
    assert codec.add(data, torch.ones(5)).tolist() == [1, 1, 1, 4, 5]


def test_the_shape_must_be_flat() -> None:
    codec = Parts([(Sign(), 6), (Sign(), 6)])
    for shape in ((13,), (3, 4), (), (12, 1)):
        with pytest.raises(
            ValueError, match=re.escape(f"shape {shape} is not (12,); give all parts in one flat tensor")
        ):
            codec.nbytes(shape)
    with pytest.raises(ValueError, match="is not"):
        codec.encode(normal(3, 4))


def test_an_error_names_its_part() -> None:
    codec = Parts([(Sign(), 100), (TopK(0.1), 50), (TopK(0.1), 200), (Uniform(1), 10)])
    x = normal(360)
    x[151] = float("nan")
    expected = r"part 2, values 150..349: TopK\(0.1\).encode: row 0 of shape \(200,\) is not finite \(nan at column 1\)"
    with pytest.raises(ValueError, match=expected):
        codec.encode(x)
    x = normal(360)
    x[-2:] = torch.tensor([3e38, -3e38])
    with pytest.raises(ValueError, match=r"part 3, values 350..359: Uniform\(1\).*scale it down"):
        codec.encode(x)


def test_damage_names_its_part_and_stops_there() -> None:
    codec = Parts([(Sign(), 100), (TopK(0.1), 50), (Identity(), 5)])
    x = normal(155)
    data = codec.encode(x)
    data[Sign().nbytes((100,)) + TopK(0.1).nbytes((50,)) - 1] ^= 0xFF
    expected = r"part 1, values 100..149: these 2\d bytes were not made by TopK\(0.1\) for shape \(50,\)"
    with pytest.raises(ValueError, match=r"\.decode: " + expected):
        codec.decode(data, (155,))
    out = torch.zeros(155)
    with pytest.raises(ValueError, match=r"\.add: " + expected):
        codec.add(data, out)
    assert bool((out[:100] != 0).all())
    assert not bool(out[100:].any())


def test_what_can_not_be_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"part 1 is ErrorFeedback\(Sign\(\)\); memory goes outside"):
        Parts([(Sign(), 3), (ErrorFeedback(Sign()), 3)])
    with pytest.raises(ValueError, match=r"part 0, Sign\(\) of -1 values: .*negative size"):
        Parts([(Sign(), -1)])
    with pytest.raises(ValueError, match=r"part 1, Mixed\(2 rows\) of 6 values: .*has 1 rows"):
        Parts([(Sign(), 3), (Mixed([1, 8]), 6)])
    with pytest.raises(TypeError):
        Parts([(Sign(), 2.5)])  # type: ignore[list-item]


def test_memory_around_parts() -> None:
    codec = Parts([(TopK(0.1), 100), (Sign(), 57), (Fitted(Ternary()), 43)])
    memory = ErrorFeedback(codec)
    sent, wanted = torch.zeros(200), torch.zeros(200)
    for step in range(30):
        x = normal(200, seed=step)
        memory.add(memory.encode(x, name="bucket 0", seed=step), sent, seed=step)
        wanted += x
    torch.testing.assert_close(sent + memory.state_dict()["bucket 0"], wanted, rtol=0, atol=1e-4)
