"""Budget never takes more than its bytes, spends them as well as can be, and sends what must be sent."""

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import SIZES, normal
from thinwire.codecs import Budget, Nearest, twins
from thinwire.codecs.kernels import kernels_for, native, twins_only
from thinwire.codecs.twins.budget import CHOICES, SENT_COST, sent_bytes
from thinwire.codecs.twins.rows import row_bytes
from thinwire.fullgraph.curve import Curve


def uneven(*shape: int, seed: int = 0) -> torch.Tensor:
    """Rows of very different sizes, as differences are: many hardly moved."""
    scale = normal(shape[0], seed=seed + 1).abs() ** 4
    return normal(*shape, seed=seed) * scale[:, None]


def chosen(
    errors: torch.Tensor, width: int, size: int, weights: torch.Tensor | None = None, must: torch.Tensor | None = None
) -> torch.Tensor:
    """The bits of each row, the same from kernel and twin."""
    weights = torch.ones(len(errors)) if weights is None else weights
    must = torch.zeros(len(errors), dtype=torch.int64) if must is None else must
    found, twin = (torch.full((len(errors),), 99, dtype=torch.uint8) for _ in range(2))
    kernels_for(errors).choose_rows(errors, weights, must, width, size, found)
    twins.choose_rows(errors, weights, must, width, size, twin)
    assert torch.equal(found, twin)
    return found


def errors_of(x: torch.Tensor) -> torch.Tensor:
    errors = torch.empty(len(x), 5, dtype=torch.float64)
    kernels_for(x).nearest_errors(x, errors)
    return errors


def position_of(bits_N: torch.Tensor) -> torch.Tensor:
    return torch.tensor([CHOICES.index(int(bits)) for bits in bits_N], dtype=torch.int64)


def left(errors: torch.Tensor, bits_N: torch.Tensor, weights: torch.Tensor | None = None) -> float:
    each = errors.gather(1, position_of(bits_N)[:, None]).squeeze(1)
    return float((each if weights is None else each * weights.double()).sum())


def bytes_of(bits_N: torch.Tensor, width: int) -> int:
    return sent_bytes(len(bits_N), int((bits_N > 0).sum())) + sum(row_bytes(width, int(bits)) for bits in bits_N)


@pytest.mark.parametrize("bits", [0.01, 0.1, 0.25, 1.0, 2.5, 8.0, 20.0])
def test_the_budget_is_the_size(bits: float) -> None:
    for num_rows, width in itertools.product(SIZES, (0, 1, 7, 8, 9, 128)):
        codec, x = Budget(bits), uneven(num_rows, width)
        size = codec.nbytes(x.shape)
        if not x.numel():
            assert size == 0
            continue
        one, all_ = (
            sent_bytes(num_rows, 1) + width // -8 * -1 + 4,
            sent_bytes(num_rows, num_rows) + num_rows * (width + 4),
        )
        assert size == max(one, min(all_, int(bits * num_rows * width / 8 + 1e-6)))
        data = codec.encode(x)
        bits_N = codec.sent(data, x.shape)
        assert 0 < bytes_of(bits_N, width) <= size == len(data)
        assert not bool(data[bytes_of(bits_N, width) :].any())
        if size == all_ and width > 4:
            assert bool((bits_N > 0).all())


def test_rows_come_as_nearest_sends_them_and_others_are_left_alone() -> None:
    x, codec = uneven(200, 40), Budget(0.7)
    data = codec.encode(x)
    bits_N = codec.sent(data, x.shape)
    assert len(bits_N.unique()) >= 3
    expected = torch.zeros_like(x)
    for bits in (1, 2, 4, 8):
        rows = bits_N == bits
        part = Nearest(bits).encode(x[rows])
        expected[rows] = Nearest(bits).decode(part, x[rows].shape)
    assert torch.equal(codec.decode(data, x.shape), expected)
    out = torch.full_like(x, -0.0)
    codec.add(data, out)
    assert torch.equal(out[bits_N == 0].view(torch.int32), torch.full_like(x, -0.0)[bits_N == 0].view(torch.int32))
    assert torch.equal(out, expected)
    assert torch.equal(codec.decode(data, x.shape, out=torch.full_like(x, 7.0)), expected)


def test_nothing_to_say_is_zeros() -> None:
    codec = Budget(1)
    data = codec.encode(torch.zeros(30, 8))
    assert not bool(data.any())
    assert not bool(codec.sent(data, (30, 8)).any())
    assert torch.equal(codec.decode(data, (30, 8)), torch.zeros(30, 8))


@pytest.mark.parametrize("width", [3, 20, 128])
def test_no_choice_is_better_where_the_hull_stops_and_none_by_more_than_a_step_elsewhere(width: int) -> None:
    every = list(itertools.product(range(5), repeat=5))
    rows = np.arange(5)
    sizes = np.array([bytes_of(torch.tensor([CHOICES[c] for c in choice]), width) for choice in every])
    costs = [0, *(row_bytes(width, bits) + SENT_COST for bits in CHOICES[1:])]
    compared = np.array([sum(costs[c] for c in choice) for choice in every])
    for seed in range(4):
        errors = errors_of(uneven(5, width, seed=seed))
        weights = normal(5, seed=seed + 50).abs()
        weighted = (errors.T * weights).T.numpy()
        lefts = np.array([weighted[rows, list(choice)].sum() for choice in every])
        step = row_bytes(width, 8) + 2
        for size in range(sent_bytes(5, 1) + row_bytes(width, 1), int(sizes.max()) + 3, 1 if width < 20 else 7):
            bits_N = chosen(errors, width, size, weights)
            own = left(errors, bits_N, weights)
            assert bytes_of(bits_N, width) <= size
            assert own >= lefts[sizes <= size].min() * (1 - 1e-12)
            fewer = lefts[sizes <= size - step]
            assert len(fewer) == 0 or own <= fewer.min() * (1 + 1e-12)
        # Where the first steps along the hulls are exactly what fits, nothing at their bytes leaves less.
        if width > 4:
            curve = Curve.of(costs, weighted)
            for first in range(1, len(curve.row) + 1):
                stop = torch.zeros(5, dtype=torch.int64)
                stop[curve.row[:first]] = torch.from_numpy(curve.choice[:first]).long()
                exactly = bytes_of(torch.tensor(CHOICES, dtype=torch.uint8)[stop], width)
                bits_N = chosen(errors, width, exactly, weights)
                at_most = compared <= curve.bytes[first]
                assert left(errors, bits_N, weights) <= lefts[at_most].min() * (1 + 1e-12)


@pytest.mark.parametrize("bits", [0.1, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("width", [16, 128])
def test_many_rows_are_within_a_step_of_the_bound(width: int, bits: float) -> None:
    x, weights = uneven(3000, width), normal(3000, seed=9).abs()
    errors, size = errors_of(x), Budget(bits).nbytes(x.shape)
    bits_N = chosen(errors, width, size, weights)
    costs = [0, *(row_bytes(width, b) + SENT_COST for b in CHOICES[1:])]
    curve = Curve.of(costs, (errors.T * weights).T.numpy())
    spent = float(torch.tensor(costs)[position_of(bits_N)].sum())
    bound = float(np.interp(spent, curve.bytes, curve.variance))
    own = left(errors, bits_N, weights)
    step = int(np.searchsorted(curve.bytes, spent))
    assert bound * (1 - 1e-9) <= own <= bound + float(curve.step_gain[max(0, step - 70) : step + 2].max())
    assert size - bytes_of(bits_N, width) < row_bytes(width, 8) or bool((bits_N == 8).all())


def test_the_size_of_the_message_decides_between_rows_by_their_weight() -> None:
    x = normal(100, 64)
    weights = torch.zeros(100)
    weights[[3, 50, 99]] = 1.0
    codec = Budget(1)
    bits_N = codec.sent(codec.encode_rows(x, weights=weights), x.shape)
    assert torch.nonzero(bits_N).flatten().tolist() == [3, 50, 99]  # others' errors count nothing
    bits_N = codec.sent(
        codec.encode_rows(x, weights=torch.ones(100).index_fill(0, torch.arange(60, 100), 1e6)), x.shape
    )
    assert int((bits_N[:60] > 0).sum()) < 5
    assert bool((bits_N[60:] > 0).all())


def test_what_must_be_sent_is_sent() -> None:
    x = uneven(100, 64)
    x[7] = 0.0
    codec = Budget(0.5)
    must = torch.zeros(100, dtype=torch.bool)
    must[[7, 11, 80]] = True
    for weights in (None, torch.zeros(100)):
        data = codec.encode_rows(x, weights=weights, must=must)
        bits_N = codec.sent(data, x.shape)
        assert bool((bits_N[must] >= 1).all())
        assert int((bits_N > 0).sum()) == 3 or weights is None
    # The largest numbers first, then the most gained; the rest waits.
    ages = torch.arange(100) % 10
    few = Budget(0.2)  # 160 bytes, at 12 a row
    bits_N = few.sent(few.encode_rows(x, must=ages), x.shape)
    assert set(bits_N.tolist()) == {0, 1}
    assert bool((bits_N[ages == 9] == 1).sum() == 10)
    assert torch.equal(bits_N > 0, bits_N * (ages >= 8) > 0)
    gains = errors_of(x)[:, 0] - errors_of(x)[:, 1]
    sent, waiting = (ages == 8) & (bits_N > 0), (ages == 8) & (bits_N == 0)
    assert float(gains[sent].min()) >= float(gains[waiting].max())


def test_a_difference_with_weights_is_subtracted_encoded_and_added() -> None:
    x, copy = normal(60, 33), normal(60, 33) + uneven(60, 33, seed=5)
    weights, must = normal(60).abs(), torch.arange(60) % 7 == 0
    expected, codec = copy.clone(), Budget(0.8)
    data = codec.encode_rows(x - copy, weights=weights, must=must)
    codec.add(data, expected)
    assert torch.equal(codec.encode_rows(x, copy=copy, weights=weights, must=must), data)
    assert torch.equal(copy.view(torch.int32), expected.view(torch.int32))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_kernel_and_twin_choose_alike(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(1, 150))
    width = data.draw(st.sampled_from([1, 2, 4, 5, 30, 256]))
    number = st.sampled_from([0.0, 1e-300, 1e-3, 0.5, 1.0, 1.0, 2.0, 3.0, 1e30, float("inf")])
    seed = data.draw(st.integers(0, 2**31))
    if data.draw(st.booleans()):
        errors = torch.tensor(data.draw(st.lists(number, min_size=5, max_size=5 * num_rows)), dtype=torch.float64)
        errors = errors.repeat(-(-5 * num_rows // len(errors)))[: 5 * num_rows].view(num_rows, 5)
        errors[:, :2] = errors[:, :2].clamp(max=1e40)
    else:
        errors = errors_of(uneven(num_rows, width, seed=seed % 1000))
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(num_rows, generator=generator).round(decimals=data.draw(st.sampled_from([0, 1, 6])))
    must = torch.randint(-3, 4, (num_rows,), generator=generator) * data.draw(st.sampled_from([0, 0, 1]))
    least = sent_bytes(num_rows, 1) + row_bytes(width, 1)
    size = data.draw(st.integers(least, sent_bytes(num_rows, num_rows) + num_rows * row_bytes(width, 8)))
    bits_N = chosen(errors, width, size, weights, must)
    assert bytes_of(bits_N, width) <= size
    forced = must > 0
    if bool((bits_N[forced] == 0).any()):
        assert int((bits_N > 0).sum()) == int((bits_N[forced] > 0).sum())
        assert int(must[bits_N > 0].min()) >= int(must[forced & (bits_N == 0)].max())


def test_kernel_and_twin_choose_alike_of_many() -> None:
    for ties in (False, True):
        errors = errors_of(uneven(5000, 32))
        errors = (errors * 8).round() if ties else errors
        for bits in (0.1, 1.0, 3.0):
            chosen(errors, 32, Budget(bits).nbytes((5000, 32)))


@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 64, 1000, 5000])
def test_which_rows_are_sent_is_told_in_the_fewest_bytes(num_rows: int) -> None:
    for share in (0.0, 1e-3, 0.02, 0.2, 0.9, 1.0):
        bits_N = torch.tensor([1, 2, 4, 8], dtype=torch.uint8).repeat(num_rows)[:num_rows]
        bits_N[torch.rand(num_rows, generator=torch.Generator().manual_seed(num_rows)) >= share] = 0
        num_sent = int((bits_N > 0).sum())
        out = torch.full((2, sent_bytes(num_rows, num_sent)), 7, dtype=torch.uint8)
        kernels_for(out).write_sent(bits_N, out[0])
        twins.write_sent(bits_N, out[1])
        assert torch.equal(out[0], out[1])
        for kernels in (kernels_for(out), twins):
            read = torch.full_like(bits_N, 9)
            assert kernels.read_sent(torch.cat((out[0], out[0])), read) == out.shape[1]
            assert torch.equal(read, bits_N)
        assert out.shape[1] <= 1 + -(-num_rows // 8) + -(-num_sent // 4) or num_sent == 0
    # One row in a hundred: its number takes less than 9 bits, and its width 2.
    assert sent_bytes(100_000, 1000) <= 5 + 1000 * 11 // 8 + 2


@settings(max_examples=300, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8), data=st.data())
def test_damaged_bytes_are_refused_or_read_within_their_bounds(
    damage: list[tuple[int, int]], data: st.DataObject
) -> None:
    shape = data.draw(st.sampled_from([(1, 1), (9, 5), (40, 16), (300, 7), (2000, 3)]))
    codec = Budget(data.draw(st.sampled_from([0.02, 0.5, 4.0])))
    bytes_ = codec.encode(uneven(*shape))
    reach = data.draw(st.sampled_from([8, len(bytes_)]))
    for place, value in damage:
        bytes_[place % min(reach, len(bytes_))] = value
    guarded = torch.full((shape[0] * shape[1] + 64,), 5.0)
    out = guarded[32:-32].view(shape).zero_()
    twin = out.clone()

    def attempt(out: torch.Tensor) -> torch.Tensor | None:
        try:
            codec.add(bytes_, out)
        except ValueError:
            with pytest.raises(ValueError, match="were not made by"):
                codec.decode(bytes_, shape)
            with pytest.raises(ValueError, match=re.escape(f"{codec}.sent: these {len(bytes_)} bytes")):
                codec.sent(bytes_, shape)
            return None
        return codec.sent(bytes_, shape)

    found = attempt(out)
    with twins_only():
        found_by_twin = attempt(twin)
    assert (found is None) == (found_by_twin is None)
    assert found is None or found_by_twin is None or torch.equal(found, found_by_twin)
    assert torch.equal(out.view(torch.int32), twin.view(torch.int32)) or not bool(torch.isfinite(out).all())
    assert found is not None or not bool(out.any())
    assert bool((guarded[:32] == 5).all())
    assert bool((guarded[-32:] == 5).all())


def test_bytes_that_cannot_be_its_own() -> None:
    codec, shape = Budget(1), (20, 8)
    size = codec.nbytes(shape)
    good = codec.encode(uneven(*shape))
    assert codec.nbytes(shape) == 20
    for begin in (
        [3],
        [1, 0, 0, 0xF0],
        [1, 0xFF, 0xFF, 0x0F],
        [2, 0, 0, 0, 0],
        [2, 21, 0, 0, 0],
        [2, 255, 255, 255, 255],
    ):
        bad = good.clone()
        bad[: len(begin)] = torch.tensor(begin, dtype=torch.uint8)
        for kernels in (kernels_for(bad), twins):
            bits_N = torch.empty(20, dtype=torch.uint8)
            begin_at = kernels.read_sent(bad, bits_N)
            assert begin_at == -1 or begin_at + sum(row_bytes(8, int(b)) for b in bits_N) > size
            assert kernels.read_sent(bad[:0], bits_N) == -1
        with pytest.raises(ValueError, match=r"these 20 bytes were not made by Budget\(1\) for shape \(20, 8\)"):
            codec.add(bad, torch.zeros(shape))
    with pytest.raises(ValueError, match="sent: these 19 bytes"):
        codec.sent(good[:-1], shape)


def test_wrong_weights_and_musts_are_refused() -> None:
    x = normal(4, 8)
    for weights in (torch.ones(3), torch.ones(4, 1), torch.ones(4, dtype=torch.float64)):
        with pytest.raises(ValueError, match="give a float32 for each row"):
            Budget(1).encode_rows(x, weights=weights)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"row 2 weighs {bad}; give finite weights"):
            Budget(1).encode_rows(x, weights=torch.tensor([1.0, 0.0, bad, 1.0]))
    for must in (torch.ones(3, dtype=torch.bool), torch.ones(4)):
        with pytest.raises(ValueError, match="give true or false, or a whole number, for each row"):
            Budget(1).encode_rows(x, must=must)


def test_huge_rows_are_sent_at_one_bit() -> None:
    """What no grid holds has no error at more bits, and one bit holds anything."""
    assert native() is not None
    x = torch.tensor([[3.4e38, -3.4e38, 0.0, 1.0]] * 3)
    codec = Budget(32)
    assert codec.sent(codec.encode(x), x.shape).tolist() == [1, 1, 1]
