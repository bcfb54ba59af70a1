"""The format that rows of features are sent in: as they are stored, in another float format, or in few bits.

A batch's features are float32, whatever the format of storage and messages.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs import Uniform
from thinwire.minibatch.kernels import kernels_of

FORMATS = {torch.float32: 32, torch.float16: 16, torch.bfloat16: -16}
HALF_MOST = torch.finfo(torch.float16).max
SENT = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class RowFormat:
    """The format of rows of `width` values: dtype `sent`, or `Uniform(bits)` if `bits` is not 0."""

    width: int
    sent: torch.dtype
    bits: int = 0

    @staticmethod
    def of(rows: str, features: Tensor) -> "RowFormat":
        """The format that a plan's `rows` means for these features."""
        if features.dtype not in FORMATS:
            raise ValueError(f"features are {features.dtype}; give float32, float16 or bfloat16")
        if SENT.get(rows) == torch.float16 != features.dtype and features.numel() and features.abs().max() > HALF_MOST:
            raise ValueError(
                f"rows is float16, which holds no more than {HALF_MOST:,.0f}; send them as they are stored"
            )
        bits = int(rows.removeprefix("uniform:")) if rows.startswith("uniform:") else 0
        return RowFormat(features.shape[1], SENT.get(rows, features.dtype), bits)

    def nbytes(self, count: int) -> int:
        if self.bits:
            return Uniform(self.bits).nbytes((count, self.width))
        return count * self.width * self.sent.itemsize

    def pack(self, table: Tensor, rows: Tensor, seed: int) -> Tensor:
        """These rows of the table, encoded as bytes."""
        if not len(rows):
            return torch.empty(0, dtype=torch.uint8, device=table.device)
        if self.bits:
            out = torch.empty(self.nbytes(len(rows)), dtype=torch.uint8, device=table.device)
            if not kernels_of(table).encode_taken(_bytes(table), FORMATS[table.dtype], rows, self.bits, seed, out):
                raise ValueError("a feature is infinite or no number; mend the data, or send rows as they are stored")
            return out
        chosen = torch.empty(len(rows), self.width * table.element_size(), dtype=torch.uint8, device=table.device)
        kernels_of(table).gather_rows(_bytes(table), rows, chosen)
        return chosen.view(table.dtype).to(self.sent).view(-1).view(torch.uint8)

    def unpack(self, data: Tensor, places: Tensor, x: Tensor) -> None:
        """Decode rows into these places of x."""
        if not len(places):
            return
        if self.bits:
            kernels_of(x).decode_placed(data, places, self.bits, x)
            return
        all_rows = torch.arange(len(places), dtype=torch.int32, device=x.device)
        kernels_of(x).take_rows(data.view(len(places), -1), FORMATS[self.sent], all_rows, places, x)


def take(table: Tensor, rows: Tensor, places: Tensor, x: Tensor) -> None:
    """Copy rows of a table of this rank into these places of x."""
    if len(rows):
        kernels_of(x).take_rows(_bytes(table), FORMATS[table.dtype], rows, places, x)


def _bytes(table: Tensor) -> Tensor:
    return table.view(torch.uint8).view(len(table), -1)
