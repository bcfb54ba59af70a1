"""How rows of features travel: as they are stored, or in fewer bits; and how many bytes that is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs import Codec, Uniform
from thinwire.minibatch.kernels import gather

STORED = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class RowFormat:
    """Of rows of `width` values. `dtype` is what a batch's features have."""

    width: int
    dtype: torch.dtype
    codec: Codec | None  # none: the bytes of `dtype` themselves

    @staticmethod
    def of(rows: str, features: Tensor) -> "RowFormat":
        """A plan's choice for features that are stored so."""
        width = features.shape[1]
        if rows == "auto":
            return RowFormat(width, features.dtype, None)
        if rows in STORED:
            return RowFormat(width, STORED[rows], None)
        return RowFormat(width, torch.float32, Uniform(int(rows.removeprefix("uniform:"))))

    def nbytes(self, count: int) -> int:
        if self.codec is not None:
            return self.codec.nbytes((count, self.width))
        return count * self.width * self.dtype.itemsize

    def pack(self, table: Tensor, rows: Tensor, seed: int) -> Tensor:
        """These rows of the table, as bytes."""
        chosen = torch.empty(len(rows), self.width, dtype=table.dtype, device=table.device)
        gather(table, rows, torch.arange(len(rows), dtype=torch.int32, device=table.device), chosen)
        if self.codec is not None:
            return self.codec.encode(chosen.float(), seed=seed)
        return chosen.to(self.dtype).view(-1).view(torch.uint8)

    def unpack(self, data: Tensor, places: Tensor, x: Tensor, seed: int) -> None:
        """Into these rows of x."""
        shape = (len(places), self.width)
        if self.codec is not None:
            rows = self.codec.decode(data, shape, seed=seed)
        else:
            # An exchange's pieces may begin anywhere: a view of another type needs its own alignment.
            rows = (data if data.data_ptr() % self.dtype.itemsize == 0 else data.clone()).view(self.dtype).view(shape)
        gather(rows, torch.arange(len(places), dtype=torch.int32, device=x.device), places, x)

    def take(self, table: Tensor, rows: Tensor, places: Tensor, x: Tensor) -> None:
        """Rows that this rank holds into these of x."""
        if table.dtype == self.dtype:
            gather(table, rows, places, x)
        else:
            x[places.long()] = table[rows.long()].to(self.dtype)
