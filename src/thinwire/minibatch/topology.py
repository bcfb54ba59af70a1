"""The whole graph's edges, which every rank holds: sampling then needs no network. Features stay in parts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from thinwire.graphs import Shard

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Topology:
    """In-neighbours of every vertex, numbered as in shards: a part is a range."""

    indptr: Array  # int64 [N + 1]
    indices: Array  # int32 or int64 [M]: whom a vertex draws from
    starts: Array  # int64 [parts + 1]

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @staticmethod
    def of(shards: Iterable[Shard]) -> "Topology":
        """All of a graph's shards, in order."""
        counts, columns, starts = [], [], [0]
        for shard in shards:
            owned = np.arange(shard.start, shard.start + shard.num_owned)
            names = np.concatenate((owned, shard.halo_ids.numpy()))
            narrow = np.int32 if shard.num_nodes < 2**31 else np.int64
            columns.append(names.astype(narrow)[shard.indices.numpy()])
            counts.append(shard.indptr.diff().numpy())
            starts.append(starts[-1] + shard.num_owned)
        indptr = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
        return Topology(indptr, np.concatenate(columns), np.array(starts))

    def sum_over_targets(self, values: Array) -> Array:
        """Of each vertex, the sum of `values` over those that it has edges to: float64 [N]."""
        of_edges = np.repeat(values, np.diff(self.indptr))
        return np.bincount(self.indices, weights=of_edges, minlength=self.num_nodes)
