"""The cache: features of remote vertices. They are chosen and fetched once before training, and never change."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thinwire.links import Door
from thinwire.minibatch.topology import Array

CHANNEL = "cache"


@dataclass(frozen=True)
class Cache:
    """Vertices in rising order, and a row of features for each, stored in the format of their owners."""

    ids: Array  # int64
    x: Tensor


def fill(ids: Array, x: Tensor, starts: Array, door: Door) -> Cache:
    """Fetch the rows of these vertices from their owners. `x` holds this rank's own rows, for the other ranks."""
    device = x.device
    owners = np.searchsorted(starts, ids, side="right") - 1
    wanted = np.bincount(owners, minlength=door.world_size)
    asked = door.gather(torch.from_numpy(wanted.astype(np.int64)), channel=CHANNEL)[:, door.rank].tolist()
    rows = torch.from_numpy((ids - starts[owners]).astype(np.int32)).to(device)
    parts = [part.contiguous() for part in rows.split(wanted.tolist())]
    received = door.all_to_all(parts, [4 * count for count in asked], channel=CHANNEL).wait()
    answers = [x[part.clone().view(torch.int32).long()].contiguous() for part in received]
    row_bytes = x.shape[1] * x.element_size()
    fetched = door.all_to_all(answers, [int(count) * row_bytes for count in wanted], channel=CHANNEL).wait()
    filled = torch.empty(len(ids), x.shape[1], dtype=x.dtype, device=device)
    torch.cat(list(fetched), out=filled.view(-1).view(torch.uint8))
    return Cache(ids, filled)
