"""Chooses the code that samples, sums and gathers: the native module for CPU tensors, else the twins.

The twins also take over where the native module is not installed.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from thinwire.codecs.kernels import kernels_for, native
from thinwire.minibatch import twins

Array = np.ndarray[Any, np.dtype[Any]]


class AnySampler(Protocol):
    """Returns batches in the order in which they were added. The native sampler works ahead, on threads of its own."""

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
    """The kernels for this tensor's device."""
    kernels = kernels_for(x)
    return cast(Kernels, kernels if kernels is native() else twins)


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
    """A sampler of `rank`'s batches.

    `cached` holds ids in rising order. At most `ahead` batches are sampled before they are fetched. `with_edges`:
    batches name the topology's edges that were drawn, which edge weights need.
    """
    module: Any = kernels_for(torch.empty(0))
    module = module if module is native() else twins
    graph = (np.ascontiguousarray(indptr, dtype=np.int64), np.ascontiguousarray(indices))
    held = (np.ascontiguousarray(starts, dtype=np.int64), rank, np.ascontiguousarray(cached, dtype=np.int64))
    return cast(AnySampler, module.Sampler(*graph, *held, list(fanouts), with_edges, threads, ahead))
