"""Measure how fast each codec is compared with memcpy and with its torch twin. Prints nothing."""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from thinwire.codecs import (
    QSGD,
    BFloat16,
    Budget,
    Codec,
    ErrorFeedback,
    Float16,
    Identity,
    Mixed,
    Nearest,
    RandomK,
    Sign,
    Ternary,
    TopK,
    Uniform,
)
from thinwire.codecs.kernels import native, twins_only

WIDTHS_OF_MIXED = (1, 2, 4, 8)


@dataclass(frozen=True)
class CodecRow:
    """One codec's rates in GB of float32 per second: medians over the repeats, `*_low` and `*_high` the extremes."""

    codec: str
    bits: float  # sent per value: the nominal width, or the average if there is none
    float32_over_bytes: float
    encode_gbps: float
    encode_low: float
    encode_high: float
    decode_gbps: float
    decode_low: float
    decode_high: float
    memcpy_gbps: float
    encode_vs_memcpy: float
    decode_vs_memcpy: float
    encode_twin_gbps: float
    decode_twin_gbps: float
    encode_vs_twin: float
    decode_vs_twin: float
    torch_topk_gbps: float | None = None
    encode_vs_torch_topk: float | None = None


@dataclass(frozen=True)
class CodecBench:
    """The result of `run`, ready for JSON."""

    rows: list[CodecRow]
    num_rows: int
    num_columns: int
    threads: int
    repeats: int
    seed: int
    isa: str

    def to_json(self) -> dict[str, Any]:
        """Rates are in GB per second, as everywhere in this file. `rate` is None, since no link is used."""
        return {"case": "codec", "hosts": 1, "rate": None, "torch": torch.__version__, **asdict(self)}


@dataclass
class _Times:
    """The seconds of each repeat, by the name of what was timed."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self, what: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        self.seconds.setdefault(what, []).append(time.perf_counter() - start)

    def median(self, what: str) -> float:
        return statistics.median(self.seconds[what])


def memory_bytes(num_rows: int, num_columns: int) -> int:
    """Roughly the peak memory of `run`: x, its buffers, and the twins' temporaries."""
    return 14 * 4 * num_rows * num_columns


def codecs_for(num_rows: int) -> list[Codec]:
    """All codecs, in the order of the table."""
    mixed = torch.tensor(WIDTHS_OF_MIXED).repeat(-(-num_rows // len(WIDTHS_OF_MIXED)))[:num_rows]
    return [
        Identity(),
        Float16(),
        BFloat16(),
        *(Uniform(bits) for bits in (1, 2, 4, 8)),
        *(Nearest(bits) for bits in (1, 2, 4, 8)),
        Mixed(mixed),
        Budget(0.25),
        Budget(1),
        Sign(),
        Ternary(),
        QSGD(4),
        QSGD(8),
        TopK(0.01),
        RandomK(0.01),
        ErrorFeedback(TopK(0.01)),
    ]


def run(
    *,
    num_rows: int = 100_000,
    num_columns: int = 256,
    threads: int = 1,
    repeats: int = 5,
    seed: int = 0,
    on_progress: Callable[[float, str], None] = lambda share, what: None,
) -> CodecBench:
    """Time all codecs on one normal matrix. In each repeat, memcpy and the twin are timed next to each codec."""
    _keep_freed_memory()
    x = torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(seed))
    buffers = _warm_buffers(x)
    cases = [_Case(codec, x, buffers, seed) for codec in codecs_for(num_rows)]
    with _threads(threads):
        # Repeat 0 warms up code and memory, and is not kept.
        for repeat in range(repeats + 1):
            for position, case in enumerate(cases):
                on_progress((repeat + position / len(cases)) / (repeats + 1), str(case.codec))
                case.measure()
            if repeat == 0:
                for case in cases:
                    case.times = _Times()
    module = native()
    return CodecBench(
        rows=[case.row() for case in cases],
        num_rows=num_rows,
        num_columns=num_columns,
        threads=threads,
        repeats=repeats,
        seed=seed,
        isa=module.isa() if module else "torch twins only",
    )


@dataclass(frozen=True)
class _Buffers:
    """Output buffers shared by all cases. Written once, so that their pages exist and memcpy is warm as well."""

    copied: Tensor
    data: Tensor
    decoded: Tensor


def _warm_buffers(x: Tensor) -> _Buffers:
    return _Buffers(torch.zeros_like(x), torch.zeros(x.nbytes + 64, dtype=torch.uint8), torch.zeros_like(x))


class _Case:
    """One codec and its times so far."""

    def __init__(self, codec: Codec, x: Tensor, buffers: _Buffers, seed: int) -> None:
        self.codec = codec
        self.x = x
        self.buffers = buffers
        self.seed = seed
        self.times = _Times()

    def measure(self) -> None:
        x, codec, seed, times = self.x, self.codec, self.seed, self.times
        copied, decoded = self.buffers.copied, self.buffers.decoded
        data = self.buffers.data[: codec.nbytes(x.shape)]
        times.time("memcpy", lambda: copied.copy_(x))
        times.time("encode", lambda: codec.encode(x, seed=seed, out=data))
        times.time("decode", lambda: codec.decode(data, x.shape, seed=seed, out=decoded))
        with twins_only():
            times.time("encode_twin", lambda: codec.encode(x, seed=seed, out=data))
            times.time("decode_twin", lambda: codec.decode(data, x.shape, seed=seed, out=decoded))
        if isinstance(codec, TopK):
            # The fastest form of the baseline: magnitudes computed before, and no sorting.
            magnitudes, k = x.abs().flatten(), max(1, round(x.numel() * codec.ratio))
            times.time("torch_topk", lambda: torch.topk(magnitudes, k, sorted=False))

    def row(self) -> CodecRow:
        times, float32_gb = self.times, self.x.nbytes / 1e9
        size = self.codec.nbytes(self.x.shape)
        bits = getattr(self.codec, "bits", None)

        def gbps(what: str) -> float:
            return float32_gb / times.median(what)

        def ratio(what: str, baseline: str) -> float:
            return times.median(baseline) / times.median(what)

        with_topk = "torch_topk" in times.seconds
        return CodecRow(
            codec=str(self.codec),
            bits=bits if isinstance(bits, int) else 8 * size / self.x.numel(),
            float32_over_bytes=self.x.nbytes / size,
            encode_gbps=gbps("encode"),
            encode_low=float32_gb / max(times.seconds["encode"]),
            encode_high=float32_gb / min(times.seconds["encode"]),
            decode_gbps=gbps("decode"),
            decode_low=float32_gb / max(times.seconds["decode"]),
            decode_high=float32_gb / min(times.seconds["decode"]),
            memcpy_gbps=gbps("memcpy"),
            encode_vs_memcpy=ratio("encode", "memcpy"),
            decode_vs_memcpy=ratio("decode", "memcpy"),
            encode_twin_gbps=gbps("encode_twin"),
            decode_twin_gbps=gbps("decode_twin"),
            encode_vs_twin=ratio("encode", "encode_twin"),
            decode_vs_twin=ratio("decode", "decode_twin"),
            torch_topk_gbps=gbps("torch_topk") if with_topk else None,
            encode_vs_torch_topk=ratio("encode", "torch_topk") if with_topk else None,
        )


def _keep_freed_memory() -> None:
    """Let malloc reuse freed memory. With fresh pages for each temporary, the twins would seem four times slower."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block straight from the kernel
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: give nothing back
    except (OSError, AttributeError):
        pass  # not glibc: twins are measured without this


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
