"""Tensors as flat bytes, as the wires take them."""

from collections.abc import Sequence

import torch
from torch import Tensor


def as_bytes(data: Tensor) -> Tensor:
    """A view of all its bytes, whatever its type and shape."""
    if not data.is_contiguous():
        raise ValueError(f"data of shape {tuple(data.shape)} is not contiguous; give data.contiguous()")
    if not data.numel():  # whose strides may be anything
        return torch.empty(0, dtype=torch.uint8, device=data.device)
    # A single value counts as contiguous whatever its stride.
    return data.detach().as_strided((data.numel(),), (1,)).view(torch.uint8)


def bundle(parts: Sequence[Tensor]) -> Tensor:
    """One flat tensor of all parts; a view where they follow each other in one buffer, as callers may encode them."""
    first, place = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.nbytes and part.data_ptr() != place:
            return torch.cat(list(parts))
        place += part.nbytes
    if place > first.untyped_storage().data_ptr() + first.untyped_storage().nbytes():
        return torch.cat(list(parts))
    return first.as_strided((place - first.data_ptr(),), (1,))
