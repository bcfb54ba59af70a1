"""A bit width for each row, chosen by the caller, as AdaQP does (arXiv 2306.01381)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_rows, rows_and_width
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.rows import fit_grid, row_bytes

WIDTHS = (0, 1, 2, 4, 8, 16, 32)


class Mixed(Codec):
    """Row i at bits[i]: 1 to 16 on the grid of `Uniform`, 32 as float32, 0 not sent.

    Wire: the rows' bytes one after another, nothing between them, the widths themselves not sent. A row of width 0
    keeps what `out` held at the receiver, and is zero where no `out` is given.
    """

    def __init__(self, bits: Sequence[int] | Tensor) -> None:
        chosen = torch.as_tensor(bits).cpu()
        if chosen.is_floating_point() and chosen.numel():
            raise ValueError(f"Mixed(bits): given {chosen.dtype}; give whole numbers, one of {WIDTHS} for each row")
        chosen = chosen.to(torch.int64)
        wrong = torch.nonzero(~torch.isin(chosen, torch.tensor(WIDTHS))).flatten()
        if chosen.ndim != 1 or wrong.numel():
            problem = (
                f"row {wrong[0]} has {chosen[wrong[0]]}" if chosen.ndim == 1 else f"it has shape {tuple(chosen.shape)}"
            )
            raise ValueError(f"Mixed(bits): {problem}; give one of 0, 1, 2, 4, 8, 16 or 32 for each row")
        self.bits = chosen.to(torch.uint8)
        self._num_rows_at = {width: int((chosen == width).sum()) for width in WIDTHS}
        self.fills_out = self._num_rows_at[0] == 0

    def __repr__(self) -> str:
        return f"Mixed({len(self.bits)} rows)"

    def nbytes(self, shape: Shape) -> int:
        num_rows, width = rows_and_width(shape)
        if num_rows != len(self.bits):
            raise ValueError(f"{self}: shape {tuple(shape)} has {num_rows} rows; give a width for each row")
        return sum(count * row_bytes(width, bits) for bits, count in self._num_rows_at.items())

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_mixed(as_rows(x), self.bits.to(x.device), seed, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_mixed(data, self.bits.to(data.device), as_rows(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_mixed(data, self.bits.to(data.device), as_rows(out))
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        refused = torch.zeros(len(x_ND), dtype=torch.bool, device=x_ND.device)
        for bits in (1, 2, 4, 8, 16):
            refused |= (self.bits.to(x_ND.device) == bits) & ~fit_grid(x_ND, bits)[2].squeeze(1)
        return refused

    def _limit(self) -> str:
        return "spans more than float32 can step through; give it 32 bits"
