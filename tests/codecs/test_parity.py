"""Native kernels equal their torch twins bit for bit: every instruction set, thread count, width and odd value."""

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.every import every_codec, module, normal
from thinwire.codecs import (
    QSGD,
    Budget,
    Codec,
    ErrorFeedback,
    Fitted,
    Mixed,
    Nearest,
    RandomK,
    Sign,
    Ternary,
    TopK,
    Uniform,
    twins,
    variances,
)
from thinwire.codecs.kernels import twins_only

WIDTHS = (0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 255, 256, 257)

INPUTS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "normal": normal,
    "zeros": lambda n, d: torch.zeros(n, d),
    "signed zeros": lambda n, d: normal(n, d).sign() * 0.0,
    "constant": lambda n, d: torch.full((n, d), 3.3),
    "tiny": lambda n, d: normal(n, d) * 1e-30,
    "subnormal": lambda n, d: normal(n, d) * 1e-42,
    "least normal": lambda n, d: normal(n, d).abs() * 1e-38 + 1e-38,
    "huge": lambda n, d: normal(n, d) * 1e30,
    "integers": lambda n, d: (normal(n, d) * 2).round(),
    "large offset": lambda n, d: 1000 + normal(n, d) * 1e-3,
    "heavy tail": lambda n, d: normal(n, d) ** 9,
}


class Outcome(NamedTuple):
    error: str
    data: torch.Tensor
    decoded: torch.Tensor  # its bits
    added: torch.Tensor  # likewise


def outcome(codec: Codec, x: torch.Tensor, seed: int) -> Outcome:
    nothing = torch.empty(0)
    try:
        data = codec.encode(x, seed=seed)
    except ValueError as error:
        return Outcome(str(error), nothing, nothing, nothing)
    added = codec.add(data, INPUTS["signed zeros"](x.numel(), 1).view(x.shape) + normal(*x.shape).round(), seed=seed)
    return Outcome("", data, codec.decode(data, x.shape, seed=seed).view(torch.int32), added.view(torch.int32))


def assert_equal_to_twin(codec: Codec, x: torch.Tensor, seed: int = 5) -> None:
    here = outcome(codec, x, seed)
    twin_codec = ErrorFeedback(codec.codec) if isinstance(codec, ErrorFeedback) else codec
    with twins_only():
        twin = outcome(twin_codec, x, seed)
    assert here.error == twin.error
    assert torch.equal(here.data, twin.data), f"{codec} encodes {tuple(x.shape)} differently"
    assert torch.equal(here.decoded, twin.decoded), f"{codec} decodes {tuple(x.shape)} differently"
    assert torch.equal(here.added, twin.added), f"{codec} adds {tuple(x.shape)} differently"


@pytest.mark.parametrize("kind", INPUTS)
def test_every_codec_on_every_kind_of_input(isa: str, kind: str) -> None:
    for width in WIDTHS:
        for num_rows in (0, 1, 9):
            for codec in every_codec(num_rows):
                assert_equal_to_twin(codec, INPUTS[kind](num_rows, width))


@pytest.mark.parametrize("kind", INPUTS)
def test_variances_on_every_kind_of_input(isa: str, kind: str) -> None:
    for width in WIDTHS:
        x = INPUTS[kind](9, width)
        if width > 3:
            x[4, 3] = torch.nan
        computed = variances(x, (1, 2, 4, 8, 16, 32))
        with twins_only():
            twin = variances(x, (1, 2, 4, 8, 16, 32))
        assert torch.equal(computed.nan_to_num(-1.0), twin.nan_to_num(-1.0)), width
        assert torch.equal(computed.isnan(), twin.isnan())


@pytest.mark.parametrize("kind", INPUTS)
def test_errors_left_on_every_kind_of_input(isa: str, kind: str) -> None:
    for width in WIDTHS:
        x, copy = INPUTS[kind](9, width), INPUTS[kind](9, width).flip(0) / 2
        if width > 3:
            x[4, 3] = torch.nan
        found, twin = torch.empty(2, 9, 5, dtype=torch.float64), torch.empty(2, 9, 5, dtype=torch.float64)
        for kernels, out in ((module(), found), (twins, twin)):
            kernels.nearest_errors(x, out[0])
            kernels.nearest_difference_errors(x, copy, out[1])
        assert torch.equal(found.nan_to_num(-1.0), twin.nan_to_num(-1.0)), width
        assert torch.equal(found.isnan(), twin.isnan())


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=80),
    num_rows=st.integers(1, 3),
    seed=st.integers(0, 2**63 - 1),
)
def test_on_whatever_floats(values: list[float], num_rows: int, seed: int) -> None:
    x = torch.tensor([values] * num_rows)
    for codec in every_codec(num_rows):
        assert_equal_to_twin(codec, x, seed)


def test_float16_agrees_on_every_bit_pattern(isa: str) -> None:
    """All finite float16 and bfloat16 values, and the float32 values half way between neighbours."""
    for dtype, position in ((torch.float16, 1), (torch.bfloat16, 2)):
        patterns = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        finite = patterns[torch.isfinite(patterns)].float()
        upper = (finite.view(torch.int32) + 0x1000).view(torch.float32)
        for x in (finite, upper[upper.abs() < 65504]):
            assert_equal_to_twin(every_codec(1)[position], x[None])


LARGE = [
    *(Uniform(1), Uniform(4), Uniform(8), Sign(), Ternary(), QSGD(8), TopK(0.01), RandomK(0.01), Fitted(Uniform(1))),
    *(Nearest(1), Nearest(2), Nearest(8), Budget(1)),
]


@pytest.mark.parametrize("codec", LARGE, ids=str)
@pytest.mark.usefixtures("restore_threads")
def test_thread_count_does_not_show(codec: Codec) -> None:
    x = normal(3001, 129)
    seen = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        seen.append(outcome(codec, x, 9))
    for _, data, decoded, added in seen[1:]:
        assert torch.equal(data, seen[0][1])
        assert torch.equal(decoded, seen[0][2])
        assert torch.equal(added, seen[0][3])
    torch.set_num_threads(2)
    assert_equal_to_twin(codec, x)


@pytest.mark.parametrize("count", [512, 4096, 65535])
@pytest.mark.parametrize("kind", ["normal", "zeros", "integers", "heavy tail"])
def test_topk_where_a_sample_says_what_to_sort(isa: str, kind: str, count: int) -> None:
    x = INPUTS[kind](1, count)
    for ratio in (1e-9, 0.01, 0.2):
        assert_equal_to_twin(TopK(ratio), x)
    # What is sampled is larger than the rest: the sample misleads, and all must be sorted.
    x[0, torch.arange(256) * count // 256] *= 1e4
    assert_equal_to_twin(TopK(0.01), x)


def test_outputs_past_the_cache(isa: str) -> None:
    """From 32 MiB on decoded values are written around the cache: another loop, the same values."""
    x = normal(2**15, 257)
    for codec in (
        Uniform(1),
        Uniform(8),
        Nearest(1),
        Mixed(torch.tensor([1, 2, 4, 8]).repeat(2**13)),
        Ternary(),
        QSGD(4),
    ):
        data = codec.encode(x)
        aligned = codec.decode(data, x.shape)
        with twins_only():
            assert torch.equal(aligned, codec.decode(data, x.shape))
        # One float further nothing is aligned, and the other loop does the work.
        shifted = torch.empty(x.numel() + 1)[1:].view(x.shape)
        assert torch.equal(codec.decode(data, x.shape, out=shifted), aligned)


def test_a_tensor_changed_meanwhile_is_an_error_and_never_a_crash() -> None:
    """TopK reads its input three times; another thread may write in between."""
    x = normal(1_000_000)
    other = [normal(1_000_000, seed=1) * 1e3, torch.zeros(1_000_000), normal(1_000_000, seed=2)]
    stop = threading.Event()

    def change() -> None:
        step = 0
        while not stop.is_set():
            x.copy_(other[step % 3])
            step += 1

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(40):
            with contextlib.suppress(RuntimeError):
                TopK(0.01).encode(x)
    finally:
        stop.set()
        writer.join()
    assert_equal_to_twin(TopK(0.01), x)


@pytest.mark.usefixtures("restore_threads")
def test_flushing_subnormals_elsewhere_changes_no_byte() -> None:
    x = normal(4000, 64) * 1e-41
    for codec in (Uniform(1), Uniform(8), Sign(), Ternary(), QSGD(8), TopK(0.01), Nearest(1), Nearest(4), Budget(1)):
        expected = codec.encode(x)
        assert torch.set_flush_denormal(True)
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                assert torch.equal(codec.encode(x), expected), f"{codec}, {threads} threads"
        finally:
            torch.set_flush_denormal(False)
