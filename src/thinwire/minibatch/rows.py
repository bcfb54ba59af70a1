"""How rows of features travel: as they are stored, in another format, or in few bits; and how many bytes that is.

A batch's features are float32, whatever is stored or sent.
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
    """Of rows of `width` values, sent as `sent`; or, if `bits`, by `Uniform(bits)`."""

    width: int
    sent: torch.dtype
    bits: int = 0

    @staticmethod
    def of(rows: str, features: Tensor) -> "RowFormat":
        """A plan's choice for features that are stored so."""
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
        """These rows of the table, as bytes."""
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
        """Into these rows of x."""
        if not len(places):
            return
        if self.bits:
            kernels_of(x).decode_placed(data, places, self.bits, x)
            return
        every = torch.arange(len(places), dtype=torch.int32, device=x.device)
        kernels_of(x).take_rows(data.view(len(places), -1), FORMATS[self.sent], every, places, x)


def take(table: Tensor, rows: Tensor, places: Tensor, x: Tensor) -> None:
    """Rows that this rank holds into these of x."""
    if len(rows):
        kernels_of(x).take_rows(_bytes(table), FORMATS[table.dtype], rows, places, x)


def _bytes(table: Tensor) -> Tensor:
    return table.view(torch.uint8).view(len(table), -1)
