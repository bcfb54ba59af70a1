"""A graph of 29 nodes, whole and in three parts, and a model's arguments for each. `check.py` tries models on them.

The graph is irregular on purpose: nodes without neighbours and with many, halo rows between all parts, and a part
without training nodes.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch_geometric.data import Data

from thinwire import graphs
from thinwire.graphs import Shard

NUM_NODES = 29
NUM_PARTS = 3
MOST = 7  # the most neighbours of a node
Given = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """A shard of the tiny graph, and the places of its rows, halo rows and edges in the whole graph."""

    shard: Shard
    rows: Tensor
    halo: Tensor
    edges: Tensor

    def of(self, whole: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """The part of a whole graph's tensor that belongs here, by nodes or edges; None if it has neither.

        `shape` is that of the part's own tensor.
        """
        if whole.ndim != len(shape):
            return None
        for axis, (size, part_size) in enumerate(zip(whole.shape, shape, strict=True)):
            if size == part_size:
                continue
            places = next(
                (
                    spread
                    for ids, total in self._kinds()
                    if (spread := _spread(ids, total, size, part_size)) is not None
                ),
                None,
            )
            if places is None:
                return None
            whole = whole.index_select(axis, places)
        return whole

    def _kinds(self) -> tuple[tuple[Tensor, int], ...]:
        return (self.rows, NUM_NODES), (self.edges, NUM_EDGES)


def _spread(ids: Tensor, total: int, size: int, part_size: int) -> Tensor | None:
    """The places of these ids on an axis where each of `total` has several entries in a row, such as heads."""
    times, rest = divmod(size, total)
    if rest or part_size != times * len(ids) or not times:
        return None
    return (ids[:, None] * times + torch.arange(times, device=ids.device)).reshape(-1)


def _edges() -> np.ndarray[Any, Any]:
    randomness = np.random.default_rng(3)
    sources = []
    for node in range(NUM_NODES):
        others = np.delete(np.arange(NUM_NODES), node)
        sources.append(np.sort(randomness.choice(others, randomness.integers(0, MOST + 1), replace=False)))
    targets = np.repeat(np.arange(NUM_NODES), [len(neighbours) for neighbours in sources])
    return np.stack((np.concatenate(sources), targets))


EDGES = _edges()  # by target, then by source
NUM_EDGES = EDGES.shape[1]


def parts(device: torch.device) -> list[Part]:
    """The whole graph as one part, then the three parts."""
    part = np.random.default_rng(4).choice(NUM_PARTS, NUM_NODES, p=[0.45, 0.3, 0.25]).astype(np.int32)
    split = np.where(part == NUM_PARTS - 1, graphs.TEST, graphs.TRAIN).astype(np.uint8)
    graph = graphs.Graph(
        edge_index=EDGES,
        x=np.zeros((NUM_NODES, 1), dtype=np.float32),
        y=np.zeros(NUM_NODES, dtype=np.int64),
        split=split,
        classes=("0", "1"),
        source="tiny",
    )
    whole = graphs.split(graph, np.zeros(NUM_NODES, dtype=np.int32), 1)
    shards = [*whole, *graphs.split(graph, part, NUM_PARTS)]
    original = torch.cat([shard.original_ids for shard in shards[1:]])
    keys = torch.from_numpy(EDGES[1] * NUM_NODES + EDGES[0])
    all_parts = []
    for shard in shards:
        halo = original[shard.halo_ids]
        sources, targets = shard.edge_index
        edges = torch.searchsorted(
            keys, shard.original_ids[targets] * NUM_NODES + torch.cat((shard.original_ids, halo))[sources]
        )
        all_parts.append(Part(shard.to(device), shard.original_ids.to(device), halo.to(device), edges.to(device)))
    return all_parts


def arguments(
    whole_arguments: Given, shard: Shard, all_parts: list[Part], *, seed: int, nudge: float = 0.0
) -> list[Given]:
    """A model's arguments on a shard, turned into those for each tiny part.

    Values of nodes and of edges are drawn at random; the rest stays.
    """
    drawn: dict[int, Tensor] = {}
    randomness = torch.Generator().manual_seed(seed)
    noise = torch.Generator().manual_seed(seed + 1)

    def draw(value: Tensor, count: int) -> Tensor:
        if value.is_floating_point():
            # Positive, for models that take roots or logarithms; values of edges are far from zero.
            rows = torch.rand(count, *value.shape[1:], generator=randomness) + (0.5 if count == NUM_EDGES else 0.0)
            rows = rows * (1 + nudge * torch.randn(rows.shape, generator=noise))
            return rows.to(value.device, value.dtype)
        # Integers (such as types of nodes) are drawn from those that the value has.
        return value.detach()[torch.randint(max(1, len(value)), (count,), generator=randomness).to(value.device)]

    def swap(part: Part, seen: dict[int, Any]) -> Callable[[Any], Any]:
        def swapped(value: Any) -> Any:
            if id(value) not in seen:
                seen[id(value)] = replacement(value)
            return seen[id(value)]

        def replacement(value: Any) -> Any:
            if value is shard:
                return part.shard
            if value is shard.edge_index:
                return part.shard.edge_index
            if isinstance(value, Data):
                return copy.copy(value).apply(swapped)
            if type(value) is int and value == shard.num_owned:
                return part.shard.num_owned
            if (
                not isinstance(value, Tensor)
                or not value.ndim
                or len(value) not in (shard.num_owned, len(shard.indices))
            ):
                return value
            along = value is shard.edge_weight or value is shard.edge_attr or len(value) != shard.num_owned
            if id(value) not in drawn:
                drawn[id(value)] = draw(value, NUM_EDGES if along else NUM_NODES)
            rows = drawn[id(value)][part.edges if along else part.rows]
            return rows.requires_grad_(value.requires_grad)

        return swapped

    calls = []
    for part in all_parts:
        args, kwargs = tree_map(swap(part, {}), whole_arguments)
        calls.append((tuple(args), dict(kwargs)))
    return calls
