"""Who samples, sums and gathers: the native module on CPU tensors, the twins elsewhere or where it is missing."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from thinwire.codecs.kernels import kernels_for, native
from thinwire.minibatch import twins

Array = np.ndarray[Any, np.dtype[Any]]


class AnySampler(Protocol):
    """Batches in the order in which they were added; the native one works ahead, on threads of its own."""

    def add(self, seeds: Array, ends: Array, keys: Array) -> None: ...
    def next(self) -> dict[str, Array]: ...


class Kernels(Protocol):
    """What `native/sampling.cpp` and `twins.py` both offer. Sparse matrices are int32, values float32, rows bytes."""

    def sum_neighbours(
        self, indptr: Tensor, columns: Tensor, weight: Tensor | None, scale: Tensor | None, x: Tensor, out: Tensor
    ) -> None: ...
    def sum_readers(
        self,
        column_ptr: Tensor,
        rows: Tensor,
        row_edges: Tensor,
        weight: Tensor | None,
        scale: Tensor | None,
        grad: Tensor,
        out: Tensor,
    ) -> None: ...
    def gather_rows(self, table: Tensor, rows: Tensor, out: Tensor) -> None: ...
    def take_rows(self, table: Tensor, stored: int, rows: Tensor, places: Tensor, out: Tensor) -> None: ...
    def encode_taken(self, table: Tensor, stored: int, rows: Tensor, bits: int, seed: int, out: Tensor) -> bool: ...
    def decode_placed(self, data: Tensor, places: Tensor, bits: int, out: Tensor) -> None: ...


def kernels_of(x: Tensor) -> Kernels:
    """For this tensor's device."""
    found = kernels_for(x)
    return cast(Kernels, found if found is native() else twins)


def new_sampler(
    indptr: Array,
    indices: Array,
    starts: Array,
    rank: int,
    cached: Array,
    fanouts: Sequence[int],
    *,
    with_edges: bool = True,
    threads: int = 1,
    ahead: int = 8,
) -> AnySampler:
    """Of `rank`'s batches; `cached` are ids in rising order, `ahead` the most batches that nobody has fetched yet.

    `with_edges`: batches say which of the topology's edges were drawn, for what goes along with edges.
    """
    made: Any = kernels_for(torch.empty(0))
    made = made if made is native() else twins
    given = (np.ascontiguousarray(indptr, dtype=np.int64), np.ascontiguousarray(indices))
    held = (np.ascontiguousarray(starts, dtype=np.int64), rank, np.ascontiguousarray(cached, dtype=np.int64))
    return cast(AnySampler, made.Sampler(*given, *held, list(fanouts), with_edges, threads, ahead))
