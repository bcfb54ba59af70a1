"""TopK keeps exactly the largest; RandomK keeps what both ends draw; damaged bytes never write outside."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.codecs.every import normal
from thinwire.codecs import RandomK, TopK
from thinwire.codecs.kernels import twins_only
from thinwire.codecs.sparse import num_kept
from thinwire.codecs.twins.sparse import permuted


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(
        st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0]), min_size=1, max_size=90
    ),
    ratio=st.floats(0.001, 1.0),
)
def test_topk_keeps_the_largest_first_ones_first(values: list[float], ratio: float) -> None:
    x = torch.tensor(values)
    k = num_kept(x.shape, ratio)
    decoded = TopK(ratio).decode(TopK(ratio).encode(x), x.shape)
    expected = torch.zeros_like(x)
    kept = sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i))[:k]
    expected[kept] = x[kept]
    assert torch.equal(decoded, expected)


@pytest.mark.parametrize("count", [1_000, 100_003, 2_000_000])
def test_topk_keeps_the_set_that_torch_keeps(count: int) -> None:
    x = normal(count)  # normal draws repeat: ties are part of it
    k = num_kept(x.shape, 0.01)
    decoded = TopK(0.01).decode(TopK(0.01).encode(x), x.shape)
    assert int((decoded != 0).sum()) == k
    expected = torch.topk(x.abs(), k).values
    torch.testing.assert_close(decoded[decoded != 0].abs().sort(descending=True).values, expected, rtol=0, atol=0)


HARD = {
    "ties": torch.ones(100_000),
    "sorted": torch.arange(100_000.0),
    "zeros": torch.zeros(1000),
    "narrow": 1 + 0.05 * normal(200_000).abs(),
    "few values": normal(200_000).round(),
    "subnormal": normal(100_000) * 1e-42,
    # A sample of every so-manieth value tells where to look; here it tells nothing, or the wrong thing.
    "few are not zero": torch.zeros(200_000).index_fill_(0, torch.arange(7, 200_000, 101), 1.0) * normal(200_000),
    "large where sampled": normal(262_144).index_fill_(0, torch.arange(0, 262_144, 512), 50.0) + normal(262_144),
    "large where not sampled": normal(262_144).index_fill_(0, torch.arange(1, 262_144, 2), 50.0) + normal(262_144),
    "large where sampled, few": normal(60_000).index_fill_(0, torch.arange(256) * 60_000 // 256, 50.0),
}


@pytest.mark.parametrize("kind", HARD)
def test_topk_on_hard_inputs(kind: str) -> None:
    x = HARD[kind]
    data = TopK(0.01).encode(x)
    with twins_only():
        assert torch.equal(TopK(0.01).encode(x), data)


@pytest.mark.parametrize(
    ("count", "ratio"), [(1, 1.0), (25_000_000, 0.01), (1000, 0.001), (1000, 0.5), (1 << 40, 1e-9)]
)
def test_topk_positions_cost_what_the_docstring_says(count: int, ratio: float) -> None:
    k = num_kept((count,), ratio)
    position_bits = (8 * TopK(ratio).nbytes((count,)) - 32 * k) / k
    low_bits = (count // k).bit_length() - 1
    assert position_bits <= low_bits + 3 + 16 / k  # two roundings to whole bytes
    assert TopK(0.01).nbytes((25_000_000,)) / 250_000 == pytest.approx(5.07, abs=0.01)


def test_k_is_a_share_rounded_up_and_never_nothing() -> None:
    assert [num_kept((n,), 0.01) for n in (0, 1, 99, 100, 101, 25_000_000)] == [0, 1, 1, 1, 2, 250_000]
    assert num_kept((100,), 0.07) == 7


@settings(max_examples=300, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=20), data=st.data())
def test_damaged_positions_are_an_error_or_values_inside(damage: list[tuple[int, int]], data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([1, 9, 100, 1000]))
    codec = TopK(data.draw(st.sampled_from([0.01, 0.1, 0.7])))
    bytes_ = codec.encode(normal(count))
    for place, value in damage:
        bytes_[place % len(bytes_)] = value
    guarded = torch.full((count + 64,), 5.0)

    def attempt(out: torch.Tensor) -> torch.Tensor | None:
        try:
            return codec.decode(bytes_, (count,), out=out).clone()
        except ValueError:
            return None

    decoded = attempt(guarded[32:-32])
    with twins_only():
        twin = attempt(torch.empty(count))
    assert bool((guarded[:32] == 5).all())
    assert bool((guarded[-32:] == 5).all())
    assert (decoded is None) == (twin is None)
    if decoded is not None and twin is not None:
        assert torch.equal(decoded.view(torch.int32), twin.view(torch.int32))


def test_damage_is_said() -> None:
    data = TopK(0.1).encode(normal(100))
    data[-1] ^= 0xFF
    with pytest.raises(ValueError, match=r"these \d+ bytes were not made by TopK\(0.1\) for shape \(100,\)"):
        TopK(0.1).decode(data, (100,))


def test_randomk_needs_no_positions() -> None:
    x = normal(1000)
    codec = RandomK(0.1)
    data = codec.encode(x, seed=8)
    assert len(data) == 4 * 100
    decoded = codec.decode(data, x.shape, seed=8)
    kept = decoded != 0
    assert int(kept.sum()) == 100
    assert torch.equal(decoded[kept], x[kept])
    assert not torch.equal(codec.decode(data, x.shape, seed=9), decoded)


def test_randomk_bytes_of_one_seed_add_up() -> None:
    a, b, codec = normal(500, seed=1), normal(500, seed=2), RandomK(0.2)
    values = codec.encode(a, seed=3).view(torch.float32) + codec.encode(b, seed=3).view(torch.float32)
    total = codec.decode(values.view(torch.uint8), (500,), seed=3)
    torch.testing.assert_close(total, codec.decode(codec.encode(a + b, seed=3), (500,), seed=3))


@pytest.mark.parametrize(("count", "k"), [(2, 1), (3, 2), (10, 3), (100, 7), (257, 100)])
def test_every_position_is_equally_likely(count: int, k: int) -> None:
    num_seeds = 8_000 // k
    device = torch.device("cpu")
    seen = torch.zeros(count)
    for seed in range(num_seeds):
        positions = permuted(k, count, seed, device)
        assert len(set(positions.tolist())) == k
        seen[positions] += 1
    # Positions of one draw exclude each other, so the counts vary less than independent ones: chi-square is cautious.
    assert stats.chisquare(seen.numpy()).pvalue > 1e-6


def test_randomk_unbiased() -> None:
    x = normal(50)
    codec = RandomK(0.2, unbiased=True)
    num_seeds = 5000
    mean = sum(codec.decode(codec.encode(x, seed=s), x.shape, seed=s).double() for s in range(num_seeds)) / num_seeds
    spread = x.double().abs() * (4 / num_seeds) ** 0.5  # (n / k - 1) x^2 a draw
    assert bool(((torch.as_tensor(mean) - x).abs() <= 5 * spread).all())
