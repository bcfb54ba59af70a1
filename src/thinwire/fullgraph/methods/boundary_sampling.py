r"""`bns`: a random share of boundary nodes is sent each epoch (BNS-GCN, arXiv 2203.10983).

Each row that one rank reads from another is drawn with probability p, and scaled by 1 / p where it is received, so
that :math:`\mathrm{E}[\tilde h] = h`. Rows that are not drawn count as zeros. Backward, only the gradients of drawn
rows are sent, scaled in the same way: they are the gradients of the sampled forward pass. As published, one draw serves
all layers of an epoch, so an epoch trains on one subgraph. Features are fetched once and kept; they are not sampled.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.codecs import Codec
from thinwire.codecs.base import Shape, as_flat, as_rows, rows_and_width
from thinwire.codecs.kernels import empty, kernels_for
from thinwire.fullgraph.methods.method import Method


@dataclass(frozen=True)
class BoundarySampling(Method):
    """A random share of the rows in float32, drawn anew each epoch (BNS-GCN)."""

    name: ClassVar[str] = "bns"

    share: float = 0.1
    """Of the rows that others read: how many are sent in an epoch, in the mean; 1 is exact."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; give more than 0, and 1 (all rows) at most")

    def draw(self, num_rows: int, seed: int) -> "DrawnRows":
        chances = torch.rand(num_rows, generator=torch.Generator().manual_seed(seed))
        return DrawnRows(chances < self.share, 1 / self.share)

    def message_bytes(self, num_rows: int, width: int) -> int:
        return 4 * round(self.share * num_rows) * width


class DrawnRows(Codec):
    """Sends some rows in float32; the receiver scales them. The others are zeros. Wire: 4 bytes a value drawn."""

    uses_seed = False

    def __init__(self, drawn: Tensor, scale: float) -> None:
        self.num_rows, self.scale = len(drawn), scale
        self.drawn = drawn.nonzero().squeeze(1)

    def __repr__(self) -> str:
        return f"DrawnRows({len(self.drawn)} of {self.num_rows})"

    def nbytes(self, shape: Shape) -> int:
        num_rows, width = rows_and_width(shape)
        if num_rows != self.num_rows:
            raise ValueError(f"{self}: shape {tuple(shape)} has {num_rows} rows; give as many as were drawn from")
        return 4 * len(self.drawn) * width

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        rows = as_rows(x).index_select(0, self.drawn.to(x.device))
        return kernels_for(x).encode_copy(as_flat(rows), "float32", out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        rows_ND = as_rows(out).zero_()
        drawn_KD = empty((len(self.drawn), rows_ND.shape[1]), torch.float32, out.device)
        kernels_for(data).decode_copy(data, "float32", as_flat(drawn_KD))
        rows_ND.index_copy_(0, self.drawn.to(out.device), drawn_KD.mul_(self.scale))
        return True
