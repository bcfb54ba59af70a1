"""Rows to a grid of 2^bits values with stochastic rounding (Sylvie, AdaQP). Twin of native/rows.h.

    low  = min of the row, rounded down to bfloat16             levels = 2^bits - 1
    step = (max - low) / levels, rounded up to bfloat16
    t    = (x - low) / step          code = whole(t) + [u < fraction(t)]          decoded = code * step + low

The grid is fixed after its rounding and covers the row, so nothing is clipped and the mean of `decoded` is x.
On the wire: a row's codes, ceil(D * bits / 8) bytes, then low and step, 4 bytes. Width 32 is plain float32, 0 nothing.
"""

import torch
from torch import Tensor

from thinwire.codecs.twins.pack import from_bytes, pack, packed_bytes, to_bytes, unpack
from thinwire.codecs.twins.random import uniform

PARAMETER_BYTES = 4
# The least step: the smallest normal number, so that its inverse is finite.
LEAST_STEP_BITS = 0x0080


def row_bytes(width: int, bits: int) -> int:
    return packed_bytes(width, bits) + (PARAMETER_BYTES if 1 <= bits <= 16 else 0)


def encode_uniform(x_ND: Tensor, bits: int, seed: int, out: Tensor) -> bool:
    rows = torch.arange(x_ND.shape[0], device=x_ND.device)
    encoded, ok = _encode(x_ND, bits, seed, rows)
    out.copy_(encoded.flatten())
    return ok


def decode_uniform(data: Tensor, bits: int, out_ND: Tensor) -> None:
    num_rows, width = out_ND.shape
    out_ND.copy_(_decode(data.view(num_rows, row_bytes(width, bits)), bits, width))


def add_uniform(data: Tensor, bits: int, out_ND: Tensor) -> None:
    num_rows, width = out_ND.shape
    out_ND.add_(_decode(data.view(num_rows, row_bytes(width, bits)), bits, width))


def encode_mixed(x_ND: Tensor, bits_N: Tensor, seed: int, out: Tensor) -> bool:
    all_ok = True
    for bits, rows, places in rows_by_width(bits_N, x_ND.shape[1]):
        encoded, ok = _encode(x_ND[rows], bits, seed, rows)
        out[places] = encoded
        all_ok = all_ok and ok
    return all_ok


def decode_mixed(data: Tensor, bits_N: Tensor, out_ND: Tensor) -> None:
    """Rows of width 0 are left as they are."""
    for bits, rows, places in rows_by_width(bits_N, out_ND.shape[1]):
        out_ND[rows] = _decode(data[places], bits, out_ND.shape[1])


def add_mixed(data: Tensor, bits_N: Tensor, out_ND: Tensor) -> None:
    for bits, rows, places in rows_by_width(bits_N, out_ND.shape[1]):
        out_ND[rows] += _decode(data[places], bits, out_ND.shape[1])


def fit_grid(x_ND: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """The receiver's low and step, float32 [N, 1], and whether float32 holds the whole grid, bool [N, 1]."""
    levels = 2**bits - 1
    if x_ND.shape[1] == 0:
        zero = x_ND.new_zeros(x_ND.shape[0], 1)
        return zero, zero, zero == 0
    lowest, highest = torch.aminmax(x_ND, dim=1, keepdim=True)
    low = _bfloat16_down(lowest + 0.0)  # -0.0 and 0.0 are one minimum: which of them came first must not show
    step_bits = _bfloat16_up_bits((highest - low) / levels).clamp_(min=LEAST_STEP_BITS)
    # The division above may have rounded down: one more unit where the top of the grid misses the maximum.
    top = low.double() + levels * _from_bfloat16_bits(step_bits).double()
    step_bits += top < highest.double()
    step = torch.where(highest > low, _from_bfloat16_bits(step_bits), 0.0)
    return low, step, torch.isfinite(low) & torch.isfinite(levels * step)


def scale_to_grid(x_ND: Tensor, low: Tensor, step: Tensor) -> Tensor:
    """t: where each value lies on its row's grid, in steps."""
    inverse = torch.where(step > 0, 1.0 / step, 0.0)
    return (x_ND - low) * inverse


def _encode(x_ND: Tensor, bits: int, seed: int, rows: Tensor) -> tuple[Tensor, bool]:
    if bits == 32:
        return to_bytes(x_ND), bool(torch.isfinite(x_ND).all())
    low, step, representable = fit_grid(x_ND, bits)
    if not bool((torch.isfinite(x_ND).all(dim=1, keepdim=True) & representable).all()):
        return x_ND.new_zeros(x_ND.shape[0], row_bytes(x_ND.shape[1], bits), dtype=torch.uint8), False
    t = scale_to_grid(x_ND, low, step)
    codes = t.to(torch.int32)
    codes += uniform(seed, rows, x_ND.shape[1]) < t - codes
    codes.clamp_(max=2**bits - 1)  # t may end an ulp above the top
    parameters = to_bytes(torch.cat((low, step), dim=1).to(torch.bfloat16))
    return torch.cat((pack(codes, bits), parameters), dim=1), True


def _decode(data: Tensor, bits: int, width: int) -> Tensor:
    if bits == 32:
        return from_bytes(data, torch.float32)
    codes_end = packed_bytes(width, bits)
    parameters = from_bytes(data[:, codes_end:], torch.bfloat16).to(torch.float32)
    return unpack(data[:, :codes_end], bits, width).to(torch.float32) * parameters[:, 1:] + parameters[:, :1]


def rows_by_width(bits_N: Tensor, width: int) -> list[tuple[int, Tensor, Tensor]]:
    """(bits, row numbers, where each row's bytes lie) for every width in use but 0."""
    widths = [int(bits) for bits in torch.unique(bits_N) if bits > 0]
    sizes = torch.zeros_like(bits_N, dtype=torch.int64)
    for bits in widths:
        sizes[bits_N == bits] = row_bytes(width, bits)
    begins = sizes.cumsum(0) - sizes
    rows_at = []
    for bits in widths:
        rows = torch.nonzero(bits_N == bits).flatten()
        within = torch.arange(row_bytes(width, bits), device=bits_N.device)
        rows_at.append((bits, rows, begins[rows, None] + within))
    return rows_at


def _bfloat16_down(x: Tensor) -> Tensor:
    """The largest bfloat16 not above x: cutting bits moves towards zero, so negative values first take one more."""
    bits = x.view(torch.int32)
    return _from_bfloat16_bits(torch.where(bits < 0, bits + 0xFFFF, bits) >> 16)


def _bfloat16_up_bits(x: Tensor) -> Tensor:
    """The bits of the smallest bfloat16 not below x >= 0."""
    return (x.view(torch.int32) + 0xFFFF) >> 16


def _from_bfloat16_bits(bits: Tensor) -> Tensor:
    return (bits << 16).view(torch.float32)
