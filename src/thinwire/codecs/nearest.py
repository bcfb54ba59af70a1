r"""Rows in few bits with nothing at random: for differences whose error feeds back."""

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_rows, rows_and_width
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins import nearest as twin
from thinwire.codecs.twins.rows import row_bytes


class Nearest(Codec):
    r"""Each value to the nearest of :math:`2^b` that suit its row. Biased, and a contraction: what is left of a row is
    never more than the row, so that it is made for differences (`encode_difference`) and for ErrorFeedback.

    1 bit: two values, the means of what is above the row's mean and of what is not. They leave the share
    :math:`1 - (\mathrm{mean} |y|)^2 / \mathrm{mean}\, y^2` of the squares or less, y the row without its mean: 0.363 of
    a Gaussian row, :math:`1 - 2 / \pi`. 2 and 4 bits: a line fitted to the row, which leaves 0.118 and 0.012 of a
    Gaussian row of 256; 8 bits: the grid of `Uniform`.

    Wire: as `Uniform`, per row ceil(D b / 8) bytes of codes, then two bfloat16, 4 bytes: the two values, or the line at
    code 0 and its step. bfloat16 adds at most 2^-16 of the row's squares at 1 bit.
    """

    uses_seed = False

    def __init__(self, bits: int) -> None:
        if bits not in twin.WIDTHS:
            raise ValueError(
                f"Nearest(bits={bits}): bits is {bits}; give 1, 2, 4 or 8, as a byte must hold whole codes"
            )
        self.bits = int(bits)

    def __repr__(self) -> str:
        return f"Nearest({self.bits})"

    def nbytes(self, shape: Shape) -> int:
        num_rows, width = rows_and_width(shape)
        return num_rows * row_bytes(width, self.bits)

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_nearest(as_rows(x), self.bits, out)

    def _encode_difference(self, x: Tensor, copy: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_nearest_difference(as_rows(x), as_rows(copy), self.bits, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_nearest(data, self.bits, as_rows(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_nearest(data, self.bits, as_rows(out))
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        if not x_ND.shape[1]:
            return torch.zeros(len(x_ND), dtype=torch.bool, device=x_ND.device)
        return ~twin.code(twin.Scaled(x_ND), self.bits)[3].squeeze(1)

    def _limit(self) -> str:
        return "spans more than float32 can step through; scale it down or use Nearest(1)"
