"""Rows at the bits that they are worth, or not at all, under a budget of bytes that is known beforehand."""

import math

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_rows, rows_and_width
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.budget import row_places, sent_bytes
from thinwire.codecs.twins.rows import row_bytes


class Budget(Codec):
    """Each row at 0, 1, 2, 4 or 8 bits, as `Nearest`, chosen by the sender: `bits` a value in the mean, all counted.

    Made for differences: a row of 0 bits is not sent, and the receiver keeps its copy. `encode_rows` takes how much
    each row's error weighs and which rows must be sent; the choice has the least weighted squared error that the bytes
    allow, or is at most one row's step from it. `sent` tells both ends what was chosen.

    Wire: floor(bits N D / 8) bytes, at least what one row takes at 1 bit and at most what all rows take at 8: which
    rows are sent (a bit each, or Elias and Fano's code of their numbers, whichever is smaller), two bits for the width
    of each, the rows' bytes, zeros. Decodes to zeros where a row was not sent; `add` leaves such rows alone.
    """

    uses_seed = False

    def __init__(self, bits: float) -> None:
        if not 0 < bits < math.inf:
            raise ValueError(f"Budget(bits={bits}): the mean of all values, above 0; 0.25 sends one row in four or so")
        self.bits = float(bits)

    def __repr__(self) -> str:
        return f"Budget({self.bits:g})"

    def nbytes(self, shape: Shape) -> int:
        num_rows, width = rows_and_width(shape)
        if num_rows * width == 0:
            return 0
        least = sent_bytes(num_rows, 1) + row_bytes(width, 1)
        most = sent_bytes(num_rows, num_rows) + num_rows * row_bytes(width, 8)
        # The product may land just below a whole number: that is not one byte less.
        return max(least, min(most, math.floor(round(self.bits * num_rows * width / 8, 6))))

    def encode_rows(
        self,
        x: Tensor,
        *,
        copy: Tensor | None = None,
        weights: Tensor | None = None,
        must: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """`encode`, or with a copy `encode_difference`, with a weight and an urgency for each row.

        weights: float32 [N], 0 or more: what a row's squared error counts; without them all count alike. must: bool or
        whole numbers [N]: rows above 0 are sent first, at 1 bit or more; if not all fit, those with the largest number.
        """
        num_rows = rows_and_width(x.shape)[0]
        weights = self._weights(weights, num_rows, x.device)
        must = self._must(must, num_rows, x.device)
        return self._encoded(x, copy, out, lambda x, copy, out: self._choose_and_send(x, copy, weights, must, out))

    def sent(self, data: Tensor, shape: Shape) -> Tensor:
        """The bits at which each row was sent, 0 for rows that were not: uint8 [N], read from the first bytes alone."""
        found = self._read(data, shape) if data.numel() == self.nbytes(shape) else None
        if found is None:
            raise ValueError(f"{self}.sent: {self._disowned(data, shape)}")
        return found[0]

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return self._encode_plainly(x, None, out)

    def _encode_difference(self, x: Tensor, copy: Tensor, seed: int, out: Tensor) -> bool:
        return self._encode_plainly(x, copy, out)

    def _encode_plainly(self, x: Tensor, copy: Tensor | None, out: Tensor) -> bool:
        num_rows = rows_and_width(x.shape)[0]
        weights, must = self._weights(None, num_rows, x.device), self._must(None, num_rows, x.device)
        return self._choose_and_send(x, copy, weights, must, out)

    def _choose_and_send(self, x: Tensor, copy: Tensor | None, weights: Tensor, must: Tensor, out: Tensor) -> bool:
        if not x.numel():
            return True
        if copy is None:
            return kernels_for(x).encode_budget(as_rows(x), weights, must, out)
        return kernels_for(x).encode_budget_difference(as_rows(x), as_rows(copy), weights, must, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        found = self._read(data, out.shape)
        if found is None:
            return False
        bits_N, payload = found
        out.zero_()
        kernels_for(data).decode_chosen(payload, bits_N, as_rows(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        found = self._read(data, out.shape)
        if found is None:
            return False
        bits_N, payload = found
        kernels_for(data).add_chosen(payload, bits_N, as_rows(out))
        return True

    def _read(self, data: Tensor, shape: Shape) -> tuple[Tensor, Tensor] | None:
        """(bits of each row, the rows' bytes); None where the bytes can't be this codec's."""
        num_rows, width = rows_and_width(shape)
        bits_N = torch.zeros(num_rows, dtype=torch.uint8, device=data.device)
        if not num_rows * width:
            return bits_N, data
        begin = kernels_for(data).read_sent(data, bits_N)
        if begin < 0:
            return None
        begin, end = row_places(bits_N, width, begin)
        return (bits_N, data[begin:end]) if end <= len(data) else None

    def _weights(self, weights: Tensor | None, num_rows: int, device: torch.device) -> Tensor:
        if weights is None:
            return torch.ones(num_rows, device=device)
        if weights.shape != (num_rows,) or weights.dtype != torch.float32 or weights.device != device:
            raise ValueError(
                f"{self}.encode_rows: weights are {weights.dtype} of shape {tuple(weights.shape)} on {weights.device}; "
                f"give a float32 for each row, shape ({num_rows},) on {device}"
            )
        least, most = torch.aminmax(weights) if num_rows else (0.0, 0.0)
        if not 0 <= float(least) <= float(most) < math.inf:  # also where one is NaN
            row = int(torch.nonzero(~(torch.isfinite(weights) & (weights >= 0)))[0])
            raise ValueError(
                f"{self}.encode_rows: row {row} weighs {weights[row].item()}; give finite weights, 0 or more"
            )
        return weights.contiguous()

    def _must(self, must: Tensor | None, num_rows: int, device: torch.device) -> Tensor:
        if must is None:
            return torch.zeros(num_rows, dtype=torch.int64, device=device)
        if must.shape != (num_rows,) or must.is_floating_point() or must.is_complex() or must.device != device:
            raise ValueError(
                f"{self}.encode_rows: must is {must.dtype} of shape {tuple(must.shape)} on {must.device}; "
                f"give true or false, or a whole number, for each row, shape ({num_rows},) on {device}"
            )
        return must.to(torch.int64).contiguous()
