"""One part of a partitioned graph: its own nodes, copies of the remote ones they read, and who sends what to whom.

N owned nodes, H halo nodes. Nodes are numbered anew so that each part is a range, central nodes (all in-neighbours
owned) before marginal ones; halo nodes stand in the order of that numbering, hence grouped by owner. The CSR has a row
for each owned node and columns for owned nodes, then halo nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.graphs.graph import TRAIN, Array, Graph


@dataclass(frozen=True)
class Shard:
    """What a rank needs of the graph, and nothing else."""

    part: int
    num_parts: int
    num_nodes: int  # of the whole graph
    num_train: int  # of the whole graph
    num_classes: int
    start: int  # the first owned node's number in the new numbering
    num_central: int
    halo_from: tuple[int, ...]  # halo rows that come from each part
    send_to: tuple[int, ...]  # rows that go to each part
    original_ids: Tensor  # int64 [N]
    halo_ids: Tensor  # int64 [H], in the new numbering
    send_rows: Tensor  # int64 [sum of send_to], owned rows, grouped by receiver
    indptr: Tensor  # int64 [N + 1]
    indices: Tensor  # int32 [edges]
    in_degree: Tensor  # int32 [N + H], in the whole graph, as are the next three
    out_degree: Tensor  # int32 [N + H]
    in_weight: Tensor  # float32 [N + H], sum of the weights of incoming edges
    looped_weight: Tensor  # float32 [N + H], the same with just one loop at each node, of weight 1 where it had none
    x: Tensor  # [N, D]
    y: Tensor  # [N] or [N, C]
    split: Tensor  # uint8 [N]
    edge_weight: Tensor | None = None  # float32 [edges]
    edge_attr: Tensor | None = None  # float32 [edges, F]
    folder_content: str = ""  # the checksum of all parts of its folder; none where it was made in memory

    @property
    def num_owned(self) -> int:
        return len(self.original_ids)

    @property
    def num_halo(self) -> int:
        return len(self.halo_ids)

    def to(self, device: torch.device) -> "Shard":
        """A copy with its tensors on this device."""
        moved = {name: getattr(self, name).to(device) for name in TENSORS if getattr(self, name) is not None}
        return replace(self, **moved)

    @cached_property
    def edge_index(self) -> Tensor:
        """The CSR's edges as PyG has them, int64 [2, edges]: columns, then rows. Always the same tensor."""
        rows = torch.repeat_interleave(torch.arange(self.num_owned, device=self.indptr.device), self.indptr.diff())
        return torch.stack((self.indices.long(), rows))


TENSORS = tuple(field.name for field in fields(Shard) if "Tensor" in str(field.type))
NUMBERS = tuple(field.name for field in fields(Shard) if field.type is int or field.type == tuple[int, ...])


@dataclass(frozen=True)
class Numbering:
    """New numbers for the nodes, by which each part is a range."""

    original: Array  # int64 [N]: the old number of each new one
    new: Array  # int64 [N]: the new number of each old one
    starts: Array  # int64 [parts + 1]
    num_central: Array  # int64 [parts]


def number_anew(graph: Graph, part: Array, num_parts: int) -> Numbering:
    marginal = np.zeros(graph.num_nodes, dtype=bool)
    for source, target in graph.edge_chunks():
        marginal[target[part[source] != part[target]]] = True
    original = np.argsort(part.astype(np.int64) * 2 + marginal, kind="stable")
    new = np.empty_like(original)
    new[original] = np.arange(len(original))
    sizes = np.bincount(part, minlength=num_parts)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    return Numbering(original, new, starts, sizes - np.bincount(part[marginal], minlength=num_parts))


def split(graph: Graph, part: Array, num_parts: int) -> Iterator[Shard]:
    """The shards, one at a time."""
    numbers = number_anew(graph, part, num_parts)
    edges = _SortedEdges(graph, numbers)
    halos = [edges.halo(p) for p in range(num_parts)]
    cuts = [np.searchsorted(halo, numbers.starts) for halo in halos]
    degrees = _degrees(graph)
    for p in range(num_parts):
        low, high = int(numbers.starts[p]), int(numbers.starts[p + 1])
        sends = [halos[q][cuts[q][p] : cuts[q][p + 1]] - low for q in range(num_parts)]
        seen = numbers.original[np.concatenate((np.arange(low, high), halos[p]))]
        owned = numbers.original[low:high]
        rows: dict[str, Any] = {
            name: torch.from_numpy(np.ascontiguousarray(values[seen])) for name, values in degrees.items()
        }
        yield Shard(
            part=p,
            num_parts=num_parts,
            num_nodes=graph.num_nodes,
            num_train=int((graph.split == TRAIN).sum()),
            num_classes=graph.num_classes,
            start=low,
            num_central=int(numbers.num_central[p]),
            halo_from=tuple(int(size) for size in np.diff(cuts[p])),
            send_to=tuple(len(rows) for rows in sends),
            original_ids=torch.from_numpy(owned),
            halo_ids=torch.from_numpy(halos[p]),
            send_rows=torch.from_numpy(np.concatenate(sends)),
            **rows,
            x=torch.from_numpy(np.asarray(graph.x[owned])),
            y=torch.from_numpy(np.asarray(graph.y[owned])),
            split=torch.from_numpy(np.asarray(graph.split[owned]).astype(np.uint8)),
            **dict[str, Any](edges.csr(p, halos[p])),
        )


def glue(shards: Sequence[Shard]) -> Graph:
    """The graph again, nodes in their original order, edges sorted by target and source."""
    original = torch.cat([shard.original_ids for shard in shards]).numpy()
    sources, targets = [], []
    for shard in shards:
        columns = torch.cat((torch.arange(shard.start, shard.start + shard.num_owned), shard.halo_ids)).numpy()
        rows = np.repeat(np.arange(shard.num_owned), np.diff(shard.indptr.numpy()))
        sources.append(original[columns[shard.indices.numpy()]])
        targets.append(original[shard.start + rows])
    edge_index = np.stack((np.concatenate(sources), np.concatenate(targets)))
    order = np.lexsort((edge_index[0], edge_index[1]))
    back = np.empty_like(original)
    back[original] = np.arange(len(original))

    def nodes(name: str) -> Array:
        return torch.cat([getattr(shard, name) for shard in shards]).numpy()[back]

    def edges(name: str) -> Array | None:
        parts = [getattr(shard, name) for shard in shards]
        return None if parts[0] is None else torch.cat(parts).numpy()[order]

    return Graph(
        edge_index=edge_index[:, order],
        x=nodes("x"),
        y=nodes("y"),
        split=nodes("split"),
        edge_weight=edges("edge_weight"),
        edge_attr=edges("edge_attr"),
        classes=tuple(str(number) for number in range(shards[0].num_classes)),
        source="glued shards",
    )


class _SortedEdges:
    """Edges in the new numbering, sorted by target and source: those of a part are a range."""

    def __init__(self, graph: Graph, numbers: Numbering) -> None:
        self._graph = graph
        self._n = max(1, graph.num_nodes)
        self._starts = numbers.starts
        keys = np.empty(graph.num_edges, dtype=np.int64)
        start = 0
        for source, target in graph.edge_chunks():
            np.add(numbers.new[target] * self._n, numbers.new[source], out=keys[start : start + len(source)])
            start += len(source)
        # The order is kept only where weights or features have to follow their edges.
        self._order = None
        if graph.edge_weight is not None or graph.edge_attr is not None:
            self._order = np.argsort(keys, kind="stable")
            keys = keys[self._order]
        else:
            keys.sort()
        self._keys = keys
        self._cuts = np.searchsorted(keys, numbers.starts * self._n)

    def halo(self, part: int) -> Array:
        """The remote nodes that a part reads, in the new numbering, in order."""
        sources = self._keys[self._cuts[part] : self._cuts[part + 1]] % self._n
        remote = sources[(sources < self._starts[part]) | (sources >= self._starts[part + 1])]
        remote.sort()
        return remote[np.concatenate(([True], remote[1:] != remote[:-1]))] if len(remote) else remote

    def csr(self, part: int, halo: Array) -> dict[str, Tensor]:
        low, high = int(self._starts[part]), int(self._starts[part + 1])
        edges = slice(int(self._cuts[part]), int(self._cuts[part + 1]))
        rows, sources = np.divmod(self._keys[edges], self._n)
        indptr = np.zeros(high - low + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows - low, minlength=high - low), out=indptr[1:])
        del rows
        local = (sources >= low) & (sources < high)
        columns = np.where(local, sources - low, 0)
        columns[~local] = high - low + np.searchsorted(halo, sources[~local])
        tensors = {"indptr": torch.from_numpy(indptr), "indices": torch.from_numpy(columns.astype(np.int32))}
        for name in ("edge_weight", "edge_attr"):
            values = getattr(self._graph, name)
            if values is not None:
                assert self._order is not None
                tensors[name] = torch.from_numpy(np.asarray(values[self._order[edges]]).astype(np.float32))
        return tensors


def _degrees(graph: Graph) -> dict[str, Array]:
    """Degrees and sums of weights, by the old numbers of nodes."""
    n = graph.num_nodes
    sums: dict[str, Array] = {
        "in_degree": np.zeros(n, dtype=np.int32),
        "out_degree": np.zeros(n, dtype=np.int32),
        "in_weight": np.zeros(n, dtype=np.float64),
    }
    without_loops, loop = np.zeros(n), np.ones(n)
    start = 0
    for source, target in graph.edge_chunks():
        weight = None if graph.edge_weight is None else graph.edge_weight[start : start + len(source)]
        sums["in_degree"] += np.bincount(target, minlength=n).astype(np.int32)
        sums["out_degree"] += np.bincount(source, minlength=n).astype(np.int32)
        sums["in_weight"] += np.bincount(target, weights=weight, minlength=n)
        loops = source == target
        other = None if weight is None else weight[~loops]
        without_loops += np.bincount(target[~loops], weights=other, minlength=n)
        # Of several loops the last one counts, as in PyG's add_remaining_self_loops.
        loop[source[loops]] = 1.0 if weight is None else weight[loops]
        start += len(source)
    sums["looped_weight"] = without_loops + loop
    return {name: values.astype(np.float32 if "weight" in name else np.int32) for name, values in sums.items()}
