"""A few values out of many: the k largest, or k that the seed picks. Twin of native/sparse.cpp.

Positions of the k largest travel in Elias and Fano's code of a sorted list, whose size depends on k and n alone: with
l = floor(log2(n / k)), the lowest l bits of each position, then one mark per position at bit (position >> l) + rank.
That is at most l + 3 bits a position (8.6 at 1 %) where a plain index has 32.
"""

import torch
from torch import Tensor

from thinwire.codecs.twins.pack import from_bytes, to_bytes
from thinwire.codecs.twins.random import mix, row_keys

VALUE_BYTES = 4
FEISTEL_ROUNDS = 4


def topk_bytes(count: int, k: int) -> int:
    return VALUE_BYTES * k + sum(position_bytes(count, k)) if k else 0


def encode_topk(x: Tensor, k: int, out: Tensor) -> bool:
    if not bool(torch.isfinite(x).all()):
        return False
    if k == 0:
        return True
    positions = select_topk(x, k)
    values_end = VALUE_BYTES * k
    out[:values_end] = to_bytes(x[positions])
    write_positions(positions, x.numel(), out[values_end:])
    return True


def decode_topk(data: Tensor, k: int, out: Tensor) -> bool:
    """False, and `out` as it was, where the bytes are not k ascending positions inside `out`."""
    positions = read_positions(data[VALUE_BYTES * k :], k, out.numel())
    if positions is None:
        return False
    out.zero_()
    out[positions] = from_bytes(data[: VALUE_BYTES * k], torch.float32)
    return True


def add_topk(data: Tensor, k: int, out: Tensor) -> bool:
    """Add the k values, and touch no other. False, and `out` as it was, where the bytes are not such positions."""
    positions = read_positions(data[VALUE_BYTES * k :], k, out.numel())
    if positions is None:
        return False
    out.index_add_(0, positions, from_bytes(data[: VALUE_BYTES * k], torch.float32))
    return True


def select_topk(x: Tensor, k: int) -> Tensor:
    """Positions of the k largest magnitudes, ascending; among equals the first ones."""
    magnitudes = x.abs()
    least = torch.topk(magnitudes, k, sorted=False).values.amin()
    larger = magnitudes > least
    equal = torch.nonzero(magnitudes == least).flatten()[: k - int(larger.sum())]
    return torch.cat((torch.nonzero(larger).flatten(), equal)).sort().values


def encode_randomk(x: Tensor, k: int, gain: float, seed: int, out: Tensor) -> bool:
    values = x[permuted(k, x.numel(), seed, x.device)] * gain
    out.copy_(to_bytes(values))
    # Values that are not sent must be finite too: dropping a NaN would hide it.
    return bool(torch.isfinite(x).all()) and bool(torch.isfinite(values).all())


def decode_randomk(data: Tensor, k: int, seed: int, out: Tensor) -> None:
    out.zero_()
    out[permuted(k, out.numel(), seed, out.device)] = from_bytes(data, torch.float32)


def add_randomk(data: Tensor, k: int, seed: int, out: Tensor) -> None:
    out.index_add_(0, permuted(k, out.numel(), seed, out.device), from_bytes(data, torch.float32))


def permuted(k: int, count: int, seed: int, device: torch.device) -> Tensor:
    """Where a keyed permutation of 0..count-1 sends 0..k-1: k different positions, each equally likely.

    Four Feistel rounds over the next even power of two, walked on until inside the range.
    """
    half = 1
    while 4**half < count:
        half += 1
    rounds = torch.arange(FEISTEL_ROUNDS, device=device)
    keys = list(zip(*row_keys(seed, rounds), strict=True))
    positions = torch.arange(k, device=device)
    outside = torch.arange(k, device=device)
    while outside.numel():
        left, right = positions[outside] >> half, positions[outside] & (2**half - 1)
        for low, high in keys:
            hashed = mix(low, high, right.to(torch.int32)).to(torch.int64) & 0xFFFFFFFF
            left, right = right, left ^ (hashed >> (32 - half))
        positions[outside] = (left << half) | right
        outside = outside[positions[outside] >= count]
    return positions


def write_positions(positions: Tensor, count: int, out: Tensor) -> None:
    """Ascending positions below `count`, at least one, in Elias and Fano's code."""
    k, device = len(positions), positions.device
    low_bits = _low_bits(count, k)
    low_bytes, high_bytes = position_bytes(count, k)
    low = (positions[:, None] >> torch.arange(low_bits, device=device)) & 1
    out[:low_bytes] = _bits_to_bytes(low.flatten(), low_bytes)
    marks = torch.zeros(high_bytes * 8, dtype=torch.int64, device=device)
    marks[(positions >> low_bits) + torch.arange(k, device=device)] = 1
    out[low_bytes:] = _bits_to_bytes(marks, high_bytes)


def read_positions(data: Tensor, k: int, count: int) -> Tensor | None:
    """The k positions; None where they do not ascend or reach `count`."""
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=data.device)
    low_bits = _low_bits(count, k)
    low_bytes, _ = position_bytes(count, k)
    marks = torch.nonzero(_bytes_to_bits(data[low_bytes:])).flatten()
    if marks.numel() != k:
        return None
    low = _bytes_to_bits(data[:low_bytes])[: k * low_bits].view(k, low_bits)
    top = marks - torch.arange(k, device=data.device)
    positions = (top << low_bits) + (low << torch.arange(low_bits, device=data.device)).sum(dim=1)
    ascending = bool((positions[1:] > positions[:-1]).all())
    return positions if ascending and int(positions[-1]) < count else None


def _low_bits(count: int, k: int) -> int:
    return (count // k).bit_length() - 1


def position_bytes(count: int, k: int) -> tuple[int, int]:
    """Of k positions below `count`: the bytes of their lowest bits, and of the marks."""
    low_bits = _low_bits(count, k)
    return (k * low_bits + 7) // 8, (k + ((count - 1) >> low_bits) + 7) // 8


def _bits_to_bytes(bits: Tensor, num_bytes: int) -> Tensor:
    bits = torch.nn.functional.pad(bits, (0, num_bytes * 8 - bits.numel())).view(num_bytes, 8)
    return (bits << torch.arange(8, device=bits.device)).sum(dim=1).to(torch.uint8)


def _bytes_to_bits(data: Tensor) -> Tensor:
    return ((data.to(torch.int64)[:, None] >> torch.arange(8, device=data.device)) & 1).flatten()
