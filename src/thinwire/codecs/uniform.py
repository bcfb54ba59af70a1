r"""Rows on a uniform grid with stochastic rounding (Sylvie, AdaQP: arXiv 2303.01277, 2306.01381)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_rows, rows_and_width
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.rows import fit_grid, row_bytes

WIDTHS = (1, 2, 4, 8)


def variances(x: Tensor, widths: Sequence[int]) -> Tensor:
    """The variance that rounding adds to each row of x at each of these widths (1 to 16, 32): float32 [N, C], exact."""
    rows = as_rows(x.detach().to(torch.float32).contiguous())
    variance_NC = torch.empty(len(rows), len(widths), dtype=torch.float32, device=x.device)
    kernels_for(rows).row_variances(rows, torch.tensor(widths, dtype=torch.uint8, device=x.device), variance_NC)
    return variance_NC


class Uniform(Codec):
    r"""Each row between its minimum and maximum in :math:`n = 2^b - 1` steps, rounded at random, unbiased.

    .. math:: q = \lfloor (h - Z) / S + u \rfloor, \qquad h' = q S + Z

    Wire: per row ceil(D b / 8) bytes of codes, then Z and S in bfloat16, 4 bytes. Z is rounded down and S up before
    anything is quantized, so the grid covers the row. Error at most S <= (max - min + |min| 2^-7) (1 + 2^-7) / n.
    """

    def __init__(self, bits: int) -> None:
        if bits not in WIDTHS:
            raise ValueError(
                f"Uniform(bits={bits}): bits is {bits}; give 1, 2, 4 or 8, as a byte must hold whole codes"
            )
        self.bits = int(bits)

    def __repr__(self) -> str:
        return f"Uniform({self.bits})"

    def nbytes(self, shape: Shape) -> int:
        num_rows, width = rows_and_width(shape)
        return num_rows * row_bytes(width, self.bits)

    def variance(self, x: Tensor) -> Tensor:
        """The exact variance of each row of `decode(encode(x))` over seeds: sum of f (1 - f) S^2, float32 [N]."""
        return variances(x, (self.bits,)).squeeze(1)

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_uniform(as_rows(x), self.bits, seed, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_uniform(data, self.bits, as_rows(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_uniform(data, self.bits, as_rows(out))
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        return ~fit_grid(x_ND, self.bits)[2].squeeze(1)

    def _limit(self) -> str:
        return "spans more than float32 can step through; scale it down"
