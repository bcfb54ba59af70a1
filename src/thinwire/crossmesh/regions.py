"""Copy a region out of a rank's local tensor, and into it."""

import itertools

import torch
from torch import Tensor

from thinwire.crossmesh.layout import Region, local_slices


def pack(local: Tensor, tile: Region, region: Region) -> Tensor:
    """The region's values, flat. A view if they are contiguous."""
    boxes = list(itertools.product(*local_slices(region, tile)))
    if len(boxes) == 1:
        return local[boxes[0]].reshape(-1).contiguous()
    if not boxes:
        return local.new_empty(0)
    return torch.cat([local[box].reshape(-1) for box in boxes])


def view_of(out: Tensor, tile: Region, region: Region) -> Tensor | None:
    """A flat view to receive the region's values into, or None if they are not contiguous."""
    boxes = list(itertools.product(*local_slices(region, tile)))
    if len(boxes) != 1 or not out[boxes[0]].is_contiguous():
        return None
    return out[boxes[0]].view(-1)


def unpack(flat: Tensor, out: Tensor, tile: Region, region: Region) -> None:
    """Copy what `pack` made into another rank's tensor."""
    at = 0
    for box in itertools.product(*local_slices(region, tile)):
        part = out[box]
        part.copy_(flat[at : at + part.numel()].view(part.shape))
        at += part.numel()
