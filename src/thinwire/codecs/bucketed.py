"""A codec of rows for long tensors: they are cut into rows of equal width, each with its own range."""

import operator

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, num_values


class Bucketed(Codec):
    """A tensor taken flat, as rows of `width` values, the last one as short as it is. Wire: the codec's, row by row."""

    def __init__(self, codec: Codec, width: int) -> None:
        width = operator.index(width)
        if width < 1:
            raise ValueError(f"Bucketed(width={width}): a row holds at least one value")
        self.codec = codec
        self.width = width
        self.fills_out, self.uses_seed = codec.fills_out, codec.uses_seed

    def __repr__(self) -> str:
        return f"Bucketed({self.codec}, {self.width})"

    def nbytes(self, shape: Shape) -> int:
        return sum(self.codec.nbytes(part) for part in self._shapes(num_values(shape)))

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        # The short row is row 0 of its own call, as the first row is of its: so it gets another seed.
        return all(self.codec._encode(rows, seed ^ i, data) for i, (rows, data) in enumerate(self._pairs(x, out)))

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        return all(self.codec._decode(part, seed ^ i, rows) for i, (rows, part) in enumerate(self._pairs(out, data)))

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        return all(self.codec._add(part, seed ^ i, rows) for i, (rows, part) in enumerate(self._pairs(out, data)))

    def _refused(self, x_ND: Tensor) -> Tensor:
        refused = [self.codec._refused(rows)[:, None].expand(rows.shape) for rows in self._rows(x_ND)]
        return torch.cat([part.reshape(-1) for part in refused]).view(x_ND.shape).any(dim=1)

    def _limit(self) -> str:
        return self.codec._limit()

    def _shapes(self, count: int) -> list[tuple[int, int]]:
        whole, rest = divmod(count, self.width)
        return [shape for shape in ((whole, self.width), (min(rest, 1), rest)) if shape[0]]

    def _rows(self, x: Tensor) -> list[Tensor]:
        shapes = self._shapes(x.numel())
        parts = x.reshape(-1).split([rows * width for rows, width in shapes]) if shapes else ()
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _pairs(self, x: Tensor, data: Tensor) -> list[tuple[Tensor, Tensor]]:
        rows = self._rows(x)
        return list(
            zip(rows, data.split([self.codec.nbytes(part.shape) for part in rows]) if rows else (), strict=True)
        )
