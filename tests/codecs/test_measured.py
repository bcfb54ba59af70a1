"""Budget measures only what can be worth its bytes: it sends the same bytes as the twin, which measures everything."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import module, normal
from tests.codecs.test_parity import INPUTS
from thinwire.codecs import Budget
from thinwire.codecs.kernels import twins_only
from thinwire.codecs.twins.budget import CHOICES, SENT_COST, row_places
from thinwire.codecs.twins.rows import row_bytes


def steep(*shape: int, seed: int = 0) -> torch.Tensor:
    """Rows of very different sizes."""
    return normal(*shape, seed=seed) * torch.exp(3 * normal(shape[0], seed=seed + 1))[:, None]


def spiked(num_rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """A few ones in a little noise, and two values so far out that 4 bits can't tell a one from zero."""
    chance = torch.rand(num_rows, width, generator=torch.Generator().manual_seed(seed))
    x = normal(num_rows, width, seed=seed + 1).sign() * (chance < 0.05) + 0.05 * normal(num_rows, width, seed=seed)
    x[:, :2] = torch.tensor([25.0, -25.0])[:width]
    return x


ROWS: dict[str, Callable[[int, int], torch.Tensor]] = {
    **INPUTS,
    "steep": steep,
    "spiked": spiked,
    "cubes": lambda n, d: normal(n, d) ** 3,
    "sparse": lambda n, d: normal(n, d) * (normal(n, d, seed=8) > 1.5),
    "ladder": lambda n, d: normal(n, d).sign() * torch.exp2(4 * normal(n, d, seed=8)),
    "two values": lambda n, d: normal(n, d).sign() * normal(n, 1, seed=8),
    "large at the sampled places": lambda n, d: (
        normal(n, d) * torch.where(torch.arange(n) % 256 < 8, 1e3, 1.0)[:, None]
    ),
    "small at the sampled places": lambda n, d: (
        normal(n, d) * torch.where(torch.arange(n) % 256 < 8, 1e-3, 1.0)[:, None]
    ),
}


def every_error(x: torch.Tensor) -> torch.Tensor:
    errors = torch.empty(len(x), len(CHOICES), dtype=torch.float64)
    module().nearest_errors(x, errors)
    return errors


def assert_as_if_all_were_measured(
    x: torch.Tensor, bits: float, weights: torch.Tensor | None = None, must: torch.Tensor | None = None
) -> None:
    """Against the kernels that measure everything, which equal their twins."""
    codec = Budget(bits)
    num_rows, width = x.shape
    every = codec._weights(weights, num_rows, x.device), codec._must(must, num_rows, x.device)
    data = codec.encode_rows(x, weights=weights, must=must)
    bits_N = torch.empty(num_rows, dtype=torch.uint8)
    module().choose_rows(every_error(x), *every, width, len(data), bits_N)
    assert torch.equal(codec.sent(data, x.shape), bits_N)
    begin, end = row_places(bits_N, width)
    expected = torch.zeros_like(data)
    module().write_sent(bits_N, expected[:begin])
    assert module().encode_chosen(x, bits_N, expected[begin:end])
    assert torch.equal(data, expected)


@pytest.mark.parametrize("kind", ROWS)
def test_bytes_are_the_twins_on_every_kind_of_rows(isa: str, kind: str) -> None:
    for num_rows, width in ((300, 1), (300, 7), (150, 257)):
        x, copy = ROWS[kind](num_rows, width), ROWS[kind](num_rows, width).flip(0) / 2
        weights, must = normal(num_rows, seed=3).abs(), torch.arange(num_rows) % 40 == 0
        for bits in (0.1, 0.5):
            codec, held, twin_held = Budget(bits), copy.clone(), copy.clone()
            data = codec.encode_rows(x, copy=held, weights=weights, must=must)
            with twins_only():
                twin = codec.encode_rows(x, copy=twin_held, weights=weights, must=must)
            assert torch.equal(data, twin), f"{width} values a row, {bits} bits"
            assert torch.equal(held.view(torch.int32), twin_held.view(torch.int32))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bytes_are_as_if_all_were_measured(data: st.DataObject) -> None:
    num_rows, width = data.draw(st.integers(1, 1500)), data.draw(st.sampled_from([1, 2, 3, 8, 20, 64, 256]))
    kinds = data.draw(st.lists(st.sampled_from(list(ROWS)), min_size=1, max_size=3))
    parts = [ROWS[kind](num_rows, max(2, width))[:, :width] for kind in kinds]
    scales = [data.draw(st.sampled_from([1.0, 1e-3, 1e3])) for _ in kinds]
    x = torch.stack([part * scale for part, scale in zip(parts, scales, strict=True)])
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    x = x[torch.randint(len(kinds), (num_rows,), generator=generator), torch.arange(num_rows)]
    # Ties, rows that count nothing, rows that must be sent.
    weights = torch.rand(num_rows, generator=generator).round(decimals=data.draw(st.sampled_from([0, 1, 6])))
    must = torch.randint(-9, 3, (num_rows,), generator=generator) * data.draw(st.sampled_from([0, 1]))
    bits = data.draw(st.sampled_from([0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 9.0]))
    assert_as_if_all_were_measured(x, bits, weights, must)


def test_rows_whose_first_step_is_to_eight_bits() -> None:
    num_rows, width = 300, 2000
    x = normal(num_rows, width)
    x[::3] = spiked(len(x[::3]), width) * torch.linspace(0.5, 8.0, len(x[::3]))[:, None]
    errors = every_error(x)
    costs = torch.tensor([row_bytes(width, bits) + SENT_COST for bits in CHOICES[1:]])
    first = ((errors[:, :1] - errors[:, 1:]) / costs).argmax(dim=1)
    assert bool((first[::3] == 3).all())
    for bits in (0.1, 0.25, 0.5):
        sent = Budget(bits).sent(Budget(bits).encode(x), x.shape)
        assert int((sent[::3] == 8).sum()) > 0
        assert_as_if_all_were_measured(x, bits)


@pytest.mark.usefixtures("restore_threads")
def test_threads_measure_alike() -> None:
    x = steep(3001, 129)
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        for bits in (0.25, 1.0):
            assert_as_if_all_were_measured(x, bits)


def test_a_value_that_is_not_finite_is_found_wherever_it_is() -> None:
    x = steep(600, 40)
    for row in (0, 5, 9, 300, 599):
        bad = x.clone()
        bad[row, 17] = torch.nan
        copy = torch.zeros_like(x)
        with pytest.raises(ValueError, match=f"row {row} of shape"):
            Budget(0.25).encode_rows(bad, copy=copy, weights=torch.zeros(600))
        assert not bool(copy.any())
