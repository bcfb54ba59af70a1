"""The edges and labels of the whole graph. All ranks hold them, so sampling needs no network. Features stay apart."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from thinwire import graphs
from thinwire.graphs import Shard

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Topology:
    """The in-neighbours of each vertex. Vertices are numbered as in shards: each part is a range."""

    indptr: Array  # int64 [N + 1]
    indices: Array  # int32 or int64 [M]: the in-neighbours, which a vertex draws from
    starts: Array  # int64 [parts + 1]
    y: Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))  # [N] or [N, C]
    split: Array = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))  # uint8 [N]
    edge_weight: Array | None = None  # float32 [M]

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_parts(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        arrays = (self.indptr, self.indices, self.starts, self.y, self.split, self.edge_weight)
        return sum(array.nbytes for array in arrays if array is not None)

    @staticmethod
    def read(folder: Path) -> "Topology":
        """Read the topology from a folder of shards, without their features."""
        parts = range(graphs.read_manifest(folder).num_parts)
        return Topology.of(graphs.read_shard(folder, part, verify=False, features=False) for part in parts)

    @staticmethod
    def of(shards: Iterable[Shard]) -> "Topology":
        """From all shards of a graph, in order. An iterator that loads one after the other will do."""
        counts, columns, weights, labels, splits, starts = [], [], [], [], [], [0]
        for shard in shards:
            owned = np.arange(shard.start, shard.start + shard.num_owned)
            names = np.concatenate((owned, shard.halo_ids.numpy()))
            narrow = np.int32 if shard.num_nodes < 2**31 else np.int64
            columns.append(names.astype(narrow)[shard.indices.numpy()])
            counts.append(shard.indptr.diff().numpy())
            starts.append(starts[-1] + shard.num_owned)
            labels.append(shard.y.numpy())
            splits.append(shard.split.numpy())
            if shard.edge_weight is not None:
                weights.append(shard.edge_weight.numpy())
        return Topology(
            np.concatenate(([0], np.cumsum(np.concatenate(counts)))),
            np.concatenate(columns),
            np.array(starts),
            np.concatenate(labels),
            np.concatenate(splits),
            np.concatenate(weights) if weights else None,
        )

    def sum_over_targets(self, values: Array) -> Array:
        """For each vertex, the sum of `values` over the vertices that it has edges to: float64 [N]."""
        of_edges = np.repeat(values, np.diff(self.indptr))
        return np.bincount(self.indices, weights=of_edges, minlength=self.num_nodes)

    def members(self, split: int) -> list[Array]:
        """For each part, its vertices of this split: int64."""
        ranges = pairwise(self.starts.tolist())
        return [low + np.flatnonzero(self.split[low:high] == split) for low, high in ranges]

    @cached_property
    def loop_weight(self) -> Array:
        """The weight of each vertex's loop as in GCN: the last one of several, 1 if there is none; float32."""
        loop_weight = np.ones(self.num_nodes, dtype=np.float32)
        if self.edge_weight is not None:
            targets = np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))
            loops = np.flatnonzero(self.indices == targets)
            loop_weight[targets[loops]] = self.edge_weight[loops]
        return loop_weight

    @cached_property
    def looped_degree(self) -> Array:
        """The degree of each vertex as in GCN: the sum of its in-edges' weights, with one loop; float32."""
        targets = np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))
        weights = np.ones(len(self.indices)) if self.edge_weight is None else self.edge_weight
        weights = np.where(self.indices == targets, 0.0, weights)
        degree = np.bincount(targets, weights=weights, minlength=self.num_nodes) + self.loop_weight
        return degree.astype(np.float32)
