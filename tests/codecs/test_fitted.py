"""Fitted is a contraction whatever it wraps: memory around it stays bounded where around the plain codec it grows."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import every_codec, normal
from thinwire.codecs import QSGD, Codec, ErrorFeedback, Fitted, Mixed, RandomK, Sign, Ternary, Uniform
from thinwire.codecs.kernels import twins_only

CODECS = [codec for codec in every_codec(1) if codec.fills_out and not isinstance(codec, ErrorFeedback | Fitted)]


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=70),
    seed=st.integers(0, 2**63 - 1),
)
def test_never_further_from_x_than_zero_is(values: list[float], seed: int) -> None:
    x = torch.tensor(values).clamp(-60000, 60000)
    for codec in map(Fitted, CODECS):
        decoded = codec.decode(codec.encode(x, seed=seed), x.shape, seed=seed).double()
        error, norm = float((x.double() - decoded).norm()), float(x.double().norm())
        assert error <= norm * (1 + 1e-6) + 1e-42, codec


@pytest.mark.parametrize("codec", [Ternary(), Uniform(1), QSGD(2), RandomK(0.1, unbiased=True), Sign()], ids=str)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000, 65537])
def test_the_scale_is_the_projections(codec: Codec, count: int) -> None:
    x = normal(count)
    data = Fitted(codec).encode(x, seed=3)
    assert torch.equal(data[:-4], codec.encode(x, seed=3))
    q = codec.decode(data[:-4], x.shape, seed=3)
    scale = data[-4:].clone().view(torch.float32)
    torch.testing.assert_close(
        float(scale), float(x.double() @ q.double() / q.double().square().sum()), rtol=1e-6, atol=0
    )
    assert torch.equal(Fitted(codec).decode(data, x.shape, seed=3), q * scale)


def test_where_nothing_arrives_the_scale_is_zero() -> None:
    for x in (torch.zeros(9), torch.empty(0)):
        data = Fitted(Ternary()).encode(x)
        assert data[-4:].tolist() == [0, 0, 0, 0]
        assert torch.equal(Fitted(Ternary()).decode(data, x.shape), x)


def test_far_apart_magnitudes() -> None:
    """What is large in x and what is large in q may stand in different places and runs."""
    x = normal(200_000) ** 9
    x[70_000:140_000] *= 1e-20
    for codec in (Ternary(), Uniform(1), RandomK(0.01, unbiased=True)):
        q = codec.decode(codec.encode(x), x.shape).double()
        scale = Fitted(codec).encode(x)[-4:].clone().view(torch.float32)
        torch.testing.assert_close(float(scale), float(x.double() @ q / (q @ q)), rtol=1e-6, atol=0)
        with twins_only():
            assert torch.equal(Fitted(codec).encode(x)[-4:].view(torch.float32), scale)


def memory_norms(codec: Codec, count: int, num_steps: int) -> list[float]:
    """Norms of the memory after each step, in norms of a gradient."""
    memory, norms = ErrorFeedback(codec), []
    for step in range(num_steps):
        memory.encode(normal(count, seed=step), seed=step)
        norms.append(float(memory.state_dict()[""].norm()) / count**0.5)
    return norms


@pytest.mark.parametrize("codec", [Ternary(), Uniform(1), QSGD(4)], ids=str)
def test_memory_stays_bounded_around_fitted(codec: Codec) -> None:
    norms = memory_norms(Fitted(codec), 1000, 400)
    assert max(norms) <= 4
    assert max(norms[300:]) <= 1.2 * max(norms[100:200])


@pytest.mark.parametrize("codec", [Uniform(1), QSGD(4)], ids=str)
def test_memory_grows_around_the_plain_codec(codec: Codec) -> None:
    norms = memory_norms(codec, 1000, 100)[::20]
    assert all(after > 1.5 * before for before, after in pairwise(norms))
    assert norms[-1] > 100


def test_memory_around_plain_ternary_grows_with_the_tensor() -> None:
    """It settles, but far out: the largest value scales all, and with more values it is larger."""
    small, large = (max(memory_norms(Ternary(), count, 200)) for count in (1000, 20_000))
    fitted = max(memory_norms(Fitted(Ternary()), 20_000, 200))
    assert large > 2 * small
    assert large > 20 * fitted


def test_what_can_not_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match=r"memory goes outside: ErrorFeedback\(Fitted"):
        Fitted(ErrorFeedback(Sign()))
    with pytest.raises(ValueError, match="give every row a width"):
        Fitted(Mixed([0, 4]))
    with pytest.raises(ValueError, match=r"Fitted\(Uniform\(1\)\).encode: row 1 of shape \(2, 2\).*scale it down"):
        Fitted(Uniform(1)).encode(torch.tensor([[0.0, 1.0], [3e38, -3e38]]))
