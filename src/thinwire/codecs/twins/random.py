"""Counter-based randomness: a function of (seed, row, column), so the same for any thread count, chunking or order.

The mixing function, arithmetic modulo 2^64 in the first two lines and modulo 2^32 in the rest:

    key       = splitmix64(splitmix64(seed) + row)                splitmix64: Steele, Lea and Flood 2014
    low, high = key mod 2^32, key div 2^32
    x = column + low
    x = (x ^ x >> 16) * 0x7feb352d + high                         multipliers: Wellons' "lowbias32"
    x = (x ^ x >> 15) * 0x846ca68b
    u = ((x >> 1) + 1/2) / 2^31, below 1                          31 bits, in float32

Two key words enter at different depths, so two rows share a stream only if all 64 bits of their keys agree. A float32
is finest near zero, so [u < f] has probability f to within 2^-32, or 2^-24 f where that is more: small fractions too
are rounded up as often as they should be.
"""

import torch
from torch import Tensor

BELOW_ONE = 1 - 2.0**-24


def splitmix64(z: Tensor) -> Tensor:
    """Bijective mixing of int64, bits taken as unsigned."""
    z = z + _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift_right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def row_keys(seed: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The (low, high) key words of int64 row numbers, as int32."""
    start = splitmix64(torch.tensor(_signed(seed), dtype=torch.int64, device=rows.device))
    key = splitmix64(start + rows)
    return key.to(torch.int32), (key >> 32).to(torch.int32)


def mix(low: Tensor, high: Tensor, columns: Tensor) -> Tensor:
    """The 32-bit hash, as int32: products and sums wrap, which is what modulo 2^32 means."""
    x = columns + low
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D + high
    return (x ^ ((x >> 15) & 0x1FFFF)) * _signed(0x846CA68B, 32)


def uniform(seed: int, rows: Tensor, num_columns: int) -> Tensor:
    """u for each (row, column), float32 [len(rows), num_columns]."""
    low, high = row_keys(seed, rows)
    columns = torch.arange(num_columns, dtype=torch.int32, device=rows.device)
    return to_unit(mix(low[:, None], high[:, None], columns))


def to_unit(x: Tensor) -> Tensor:
    """An int32 hash to float32 in (0, 1)."""
    return (((x >> 1) & 0x7FFFFFFF).to(torch.float32) * 2.0**-31 + 2.0**-32).clamp_(max=BELOW_ONE)


def _signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _shift_right(z: Tensor, count: int) -> Tensor:
    return (z >> count) & ((1 << (64 - count)) - 1)
