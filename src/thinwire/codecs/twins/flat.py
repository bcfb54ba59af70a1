"""Tensors as one flat run of values: signs, TernGrad, QSGD's buckets. Twin of native/flat.h.

A scale must not depend on the order in which a machine adds: values are scaled to whole numbers small enough that a
float64 holds every partial sum exactly, and then any order gives the same total.
"""

import torch
from torch import Tensor

from thinwire.codecs.twins.pack import from_bytes, pack, packed_bytes, to_bytes, unpack
from thinwire.codecs.twins.random import uniform

# Randomness is counted in (row, column): a flat run is cut into rows of this many values.
RUN = 65536
SCALE_BYTES = 4
# Sums of whole numbers stay below 2^50: exact in float64, with room for the kernel's way of rounding.
WHOLE_BITS = 50
# QSGD's norm where a bucket's own is smaller: its inverse stays finite.
LEAST_NORM = 2.0**-100


def encode_sign(x: Tensor, out: Tensor) -> bool:
    return _put(pack((x >= 0).to(torch.int32), 1), mean_magnitude(x), out)


def decode_sign(data: Tensor, out: Tensor) -> None:
    out.copy_(_signs(data, out.numel()))


def add_sign(data: Tensor, out: Tensor) -> None:
    out.add_(_signs(data, out.numel()))


def encode_ternary(x: Tensor, seed: int, out: Tensor) -> bool:
    scale = x.abs().amax() if x.numel() else x.new_zeros(())
    sent = _uniform_run(seed, x) < x.abs() / scale  # 0 / 0 is NaN, and NaN sends nothing
    codes = torch.where(sent, torch.where(x < 0, 2, 1), 0).to(torch.int32)
    return _put(pack(codes, 2), scale, out)


def decode_ternary(data: Tensor, out: Tensor) -> None:
    out.copy_(_ternaries(data, out.numel()))


def add_ternary(data: Tensor, out: Tensor) -> None:
    out.add_(_ternaries(data, out.numel()))


def encode_qsgd(x: Tensor, bits: int, bucket: int, seed: int, out: Tensor) -> bool:
    top = 2 ** (bits - 1) - 1
    for x_BK, first, begin, end in _buckets(x, out, bits, bucket):
        norm = bucket_norm(x_BK)
        if not bool(torch.isfinite(norm).all()):
            return False
        t = x_BK.abs() * (top / _at_least(norm))
        levels = t.to(torch.int32)
        rows = torch.arange(first, first + x_BK.shape[0], device=x.device)
        levels += uniform(seed, rows, x_BK.shape[1]) < t - levels
        codes = levels.clamp_(max=top) | torch.where(x_BK < 0, top + 1, 0).to(torch.int32)
        out[begin:end] = torch.cat((pack(codes, bits), to_bytes(norm)), dim=1).flatten()
    return True


def decode_qsgd(data: Tensor, bits: int, bucket: int, out: Tensor) -> None:
    for out_BK, _, begin, end in _buckets(out, data, bits, bucket):
        out_BK.copy_(_levels(data[begin:end].view(out_BK.shape[0], -1), bits, out_BK.shape[1]))


def add_qsgd(data: Tensor, bits: int, bucket: int, out: Tensor) -> None:
    for out_BK, _, begin, end in _buckets(out, data, bits, bucket):
        out_BK.add_(_levels(data[begin:end].view(out_BK.shape[0], -1), bits, out_BK.shape[1]))


def fit_scale(x: Tensor, q: Tensor, out: Tensor) -> bool:
    """The scale that brings q nearest to x, <x, q> / <q, q>, and 0 for a q of zeros; False where it is not finite."""
    above, below = (torch.zeros((), dtype=torch.float64, device=x.device) for _ in range(2))
    if x.numel():
        for x_run, q_run in zip(torch.split(x, RUN), torch.split(q, RUN), strict=True):
            above = above + _whole_sum(x_run[None], q_run[None])[0, 0]
            below = below + _whole_sum(q_run[None], q_run[None])[0, 0]
    scale = torch.where(below == 0, 0.0, above / below).to(torch.float32)
    out.copy_(to_bytes(scale.reshape(1)))
    return bool(torch.isfinite(scale))


def mean_magnitude(x: Tensor) -> Tensor:
    """Mean of |x| as float32, the same for any order of adding inside a run; not finite where a value is not."""
    if not x.numel():
        return x.new_zeros(())
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for run in torch.split(x, RUN):
        total = total + _whole_sum(run[None])[0, 0]
    return (total / x.numel()).to(torch.float32)


def bucket_norm(x_BK: Tensor) -> Tensor:
    """L2 norm of each bucket, float32 [B, 1], the same for any order of adding; not finite where a value is not."""
    total = torch.zeros(x_BK.shape[0], 1, dtype=torch.float64, device=x_BK.device)
    for run in torch.split(x_BK, RUN, dim=1):
        total = total + _whole_sum(run, run)
    return total.sqrt().to(torch.float32)


def _whole_sum(x_BK: Tensor, y_BK: Tensor | None = None) -> Tensor:
    """Sum of |x|, or of x y, of each row, float64 [B, 1]: whole numbers below 2^WHOLE_BITS, so no order can show."""
    factors = [x_BK] if y_BK is None else [x_BK, y_BK]
    largest = [factor.abs().amax(dim=1, keepdim=True) for factor in factors]
    exponent = torch.stack([torch.frexp(magnitude).exponent for magnitude in largest]).sum(dim=0)
    shift = WHOLE_BITS - (x_BK.shape[1] - 1).bit_length() - exponent
    terms = x_BK.double().abs() if y_BK is None else x_BK.double() * y_BK.double()
    total = _times_power_of_two(terms, shift).round().sum(dim=1, keepdim=True)
    return _times_power_of_two(total, -shift) + sum(magnitude * 0 for magnitude in largest)  # NaN stays NaN


def _times_power_of_two(x: Tensor, exponent: Tensor) -> Tensor:
    # The power is built from its bits: torch.ldexp goes through float32, and torch.pow may be an ulp off.
    return x * ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def _at_least(norm: Tensor) -> Tensor:
    return torch.where(norm > LEAST_NORM, norm, LEAST_NORM)


def _uniform_run(seed: int, x: Tensor) -> Tensor:
    rows = torch.arange(-(-x.numel() // RUN), device=x.device)
    return uniform(seed, rows, min(RUN, x.numel())).flatten()[: x.numel()]


def _put(codes: Tensor, scale: Tensor, out: Tensor) -> bool:
    out[:-SCALE_BYTES] = codes
    out[-SCALE_BYTES:] = to_bytes(scale.reshape(1))
    return bool(torch.isfinite(scale))


def _signs(data: Tensor, count: int) -> Tensor:
    codes, scale = _take(data, 1, count)
    return torch.where(codes == 1, scale, -scale)


def _ternaries(data: Tensor, count: int) -> Tensor:
    codes, scale = _take(data, 2, count)
    return torch.where(codes == 2, -scale, torch.where(codes == 1, scale, 0.0))


def _levels(rows: Tensor, bits: int, width: int) -> Tensor:
    top = 2 ** (bits - 1) - 1
    norm = from_bytes(rows[:, -SCALE_BYTES:], torch.float32)
    codes = unpack(rows[:, :-SCALE_BYTES], bits, width)
    values = (codes & top).to(torch.float32) * (_at_least(norm) / top)
    return torch.where(codes > top, -values, values)


def _take(data: Tensor, bits: int, count: int) -> tuple[Tensor, Tensor]:
    return unpack(data[:-SCALE_BYTES], bits, count), from_bytes(data[-SCALE_BYTES:], torch.float32)


def _buckets(x: Tensor, data: Tensor, bits: int, bucket: int) -> list[tuple[Tensor, int, int, int]]:
    """Whole buckets as one matrix, then the short last one: (values, number of the first, where its bytes lie)."""
    whole, rest = divmod(x.numel(), bucket)
    begin = whole * (packed_bytes(bucket, bits) + SCALE_BYTES)
    buckets = []
    if whole:
        buckets.append((x[: whole * bucket].view(whole, bucket), 0, 0, begin))
    if rest:
        buckets.append((x[whole * bucket :].view(1, rest), whole, begin, data.numel()))
    return buckets
