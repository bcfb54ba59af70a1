"""Dropout by node: a value is kept or not by (seed, its row's own number, its column), wherever the row lives."""

import torch
from torch import Tensor

from thinwire.codecs.twins.random import uniform


def drop_rows(x_ND: Tensor, ids_N: Tensor, keep: float, seed: int, out_ND: Tensor) -> None:
    """out = x / keep where u < keep, else 0; u by (seed, ids, column). keep and 1 / keep are rounded to float32."""
    least, gain = torch.tensor([keep, 1 / keep], dtype=torch.float32, device=x_ND.device)
    out_ND.copy_(torch.where(uniform(seed, ids_N, x_ND.shape[1]) < least, x_ND * gain, 0.0))
