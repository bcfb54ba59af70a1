"""What all rows have in common is sent once, and the rest by another codec: for differences, which drift together."""

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_rows, rows_and_width
from thinwire.codecs.budget import Budget
from thinwire.codecs.nearest import Nearest

MEAN_BYTES = 2  # of a value of the mean row, in bfloat16


class Centred(Codec):
    """The mean of all rows, and by `codec` what each row differs from it.

    A step of the weights moves all rows in much the same direction. So rows that a `Budget` does not send move too.

    Wire: the mean row in bfloat16, 2 D bytes, then the other codec's bytes.
    """

    uses_seed = False

    def __init__(self, codec: Budget | Nearest) -> None:
        self.codec = codec

    def __repr__(self) -> str:
        return f"Centred({self.codec})"

    def nbytes(self, shape: Shape) -> int:
        num_rows, width = rows_and_width(shape)
        return self.codec.nbytes(shape) + (MEAN_BYTES * width if num_rows else 0)

    @property
    def chooses_rows(self) -> bool:
        """Whether `encode_rows` heeds weights and which rows must be sent."""
        return isinstance(self.codec, Budget)

    def encode_rows(self, x: Tensor, *, weights: Tensor | None = None, must: Tensor | None = None) -> Tensor:
        """`encode`, with a weight and an urgency for each row (`Budget.encode_rows`)."""
        assert isinstance(self.codec, Budget)
        x = self._as_float32(x).contiguous()
        if not x.numel():
            return self.encode(x)
        mean = self._mean(x)
        rest = self.codec.encode_rows(x - mean.float(), weights=weights, must=must)
        return torch.cat((mean.view(torch.uint8), rest))

    def sent(self, data: Tensor, shape: Shape) -> Tensor:
        """The bits at which each row was sent beside the mean (`Budget.sent`)."""
        assert isinstance(self.codec, Budget)
        return self.codec.sent(data[self._head(shape) :], shape)

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        rows_ND, head = as_rows(x), self._head(x.shape)
        if not len(rows_ND):
            return True
        mean = self._mean(rows_ND)
        out[:head] = mean.view(torch.uint8)
        return self.codec._encode(rows_ND - mean.float(), seed, out[head:])

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        rows_ND, head = as_rows(out), self._head(out.shape)
        if not len(rows_ND):
            return True
        if not self.codec._decode(data[head:], seed, rows_ND):
            return False
        rows_ND += data[:head].clone().view(torch.bfloat16).float()
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        return self.codec._refused(x_ND - self._mean(x_ND).float())

    @staticmethod
    def _mean(rows_ND: Tensor) -> Tensor:
        return as_rows(rows_ND).mean(dim=0).to(torch.bfloat16)

    @staticmethod
    def _head(shape: Shape) -> int:
        num_rows, width = rows_and_width(shape)
        return MEAN_BYTES * width if num_rows else 0
