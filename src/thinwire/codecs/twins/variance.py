"""What rounding a row at random adds: the sum of f (1 - f) step^2 over its values. Twin of native/variance.h."""

import torch
from torch import Tensor

from thinwire.codecs.twins.rows import fit_grid, scale_to_grid

# The order of adding, the same for registers of any width: column c in lane c % 16, then lanes by halves.
SUM_LANES = 16


def row_variances(x_ND: Tensor, bits_C: Tensor, out_NC: Tensor) -> None:
    """The variance of each row at each width: 0 for 32 bits, infinite where a grid is too wide, NaN where a row is."""
    finite = torch.isfinite(x_ND).all(dim=1)
    for column, bits in enumerate(bits_C.tolist()):
        if bits == 32:
            out_NC[:, column] = 0.0
        else:
            low, step, representable = fit_grid(x_ND, bits)
            t = scale_to_grid(x_ND, low, step)
            fraction = t - t.floor()
            variance = lane_sums(fraction * (1 - fraction)) * step.square()
            out_NC[:, column] = torch.where(representable, variance, torch.inf).squeeze(1)
        out_NC[~finite, column] = torch.nan


def lane_sums(x_ND: Tensor) -> Tensor:
    """Each row's sum, float32 [N, 1], in that order."""
    num_rows, width = x_ND.shape
    padded = torch.nn.functional.pad(x_ND, (0, -width % SUM_LANES))
    lanes = x_ND.new_zeros(num_rows, SUM_LANES)
    for part in padded.split(SUM_LANES, dim=1):
        lanes = lanes + part if part.shape[1] else lanes
    half = SUM_LANES // 2
    while half >= 1:
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        half //= 2
    return lanes
