"""Codes to bits: packed along the last dimension, the first code in the lowest bits of its byte."""

import torch
from torch import Tensor


def packed_bytes(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """int32 codes [..., D] below 2^bits -> uint8 [..., ceil(D * bits / 8)]."""
    if bits == 16:
        halves = torch.stack((codes & 0xFF, codes >> 8), dim=-1)
        return halves.flatten(-2).to(torch.uint8)
    per_byte = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_byte)).to(torch.uint8)
    packed = codes[..., ::per_byte].clone()
    for i in range(1, per_byte):
        packed |= codes[..., i::per_byte] << (i * bits)
    return packed


def unpack(data: Tensor, bits: int, count: int) -> Tensor:
    """uint8 [..., ceil(count * bits / 8)] -> int32 codes [..., count]."""
    data = data.to(torch.int32)
    if bits == 16:
        return data[..., ::2] | (data[..., 1::2] << 8)
    mask = (1 << bits) - 1
    codes = torch.stack([(data >> shift) & mask for shift in range(0, 8, bits)], dim=-1)
    return codes.flatten(-2)[..., :count]


def to_bytes(values: Tensor) -> Tensor:
    """The memory of any contiguous tensor, uint8 [..., D * itemsize]."""
    return values.contiguous().view(torch.uint8)


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `to_bytes`; copies, since a message may begin at any address."""
    return data.flatten().clone().view(dtype).view(*data.shape[:-1], data.shape[-1] // dtype.itemsize)
