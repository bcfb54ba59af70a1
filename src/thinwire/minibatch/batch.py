"""A sampled batch: vertices in the order of sampling, and one CSR. Each layer uses the first rows of it.

With L layers, the targets of layer l (counted from 0) are all vertices up to hop L - 1 - l, its sources those up to hop
L - l. A vertex draws its neighbours once, so the CSR of a layer is a prefix of the whole one, and no row is computed
that later layers do not read.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from thinwire.minibatch.kernels import Array, kernels_of
from thinwire.minibatch.topology import Topology


@dataclass(frozen=True)
class Sampled:
    """The sampler's output; names as in `native/sample.h`."""

    nodes: Tensor  # int64
    num_nodes: tuple[int, ...]  # seeds, then with the vertices of each hop
    indptr: Tensor
    columns: Tensor
    edges: Tensor  # int64: the place of each edge in the topology
    column_ptr: Tensor
    rows: Tensor
    row_edges: Tensor
    own_at: Tensor
    own_rows: Tensor
    cached_at: Tensor
    cached_rows: Tensor
    wanted_at: Tensor
    wanted_rows: Tensor
    wanted_from: tuple[int, ...]

    @staticmethod
    def of(arrays: dict[str, Array]) -> "Sampled":
        numbers: dict[str, Any] = {name: tuple(arrays[name].tolist()) for name in ("num_nodes", "wanted_from")}
        tensors: dict[str, Any] = {
            name: torch.from_numpy(array) for name, array in arrays.items() if name not in numbers
        }
        return Sampled(**tensors, **numbers)

    def to(self, device: torch.device) -> "Sampled":
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


class Layer:
    """One layer's adjacency: targets are the first `num_targets` of its sources."""

    def __init__(self, sampled: Sampled, topology: Topology, number: int) -> None:
        hops = len(sampled.num_nodes) - 1
        self.num_targets = sampled.num_nodes[hops - 1 - number]
        self.num_sources = sampled.num_nodes[hops - number]
        self._number = number
        self._sampled = sampled
        self._topology = topology

    @property
    def indptr(self) -> Tensor:
        """int32 [targets + 1]."""
        return self._sampled.indptr[: self.num_targets + 1]

    @cached_property
    def num_edges(self) -> int:
        return int(self._sampled.indptr[self.num_targets])

    @property
    def columns(self) -> Tensor:
        """int32: the source of each edge, target after target."""
        return self._sampled.columns[: self.num_edges]

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 [2, edges], as in PyG: sources, targets."""
        targets = torch.arange(self.num_targets, device=self.columns.device)
        return torch.stack((self.columns.long(), torch.repeat_interleave(targets, self.indptr.diff())))

    @cached_property
    def edge_weight(self) -> Tensor | None:
        """The graph's weight of each edge."""
        if self._topology.edge_weight is None:
            return None
        chosen = self._topology.edge_weight[self._sampled.edges[: self.num_edges].cpu().numpy()]
        return torch.from_numpy(chosen).to(self.columns.device)

    @cached_property
    def transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """By source: where its targets begin, the targets, their edges. The sampler makes it for all but layer 0."""
        sampled = self._sampled
        if self._number > 0:
            return sampled.column_ptr[: self.num_sources + 1], sampled.rows, sampled.row_edges
        order = torch.argsort(self.columns, stable=True)
        starts = torch.zeros(self.num_sources + 1, dtype=torch.int32, device=order.device)
        counts = torch.bincount(self.columns, minlength=self.num_sources)
        torch.cumsum(counts, 0, dtype=torch.int32, out=starts[1:])
        return starts, self.edge_index[1][order].int(), order.int()

    def mean(self, x: Tensor) -> Tensor:
        """The mean over the neighbours drawn; 0 if there are none."""
        return self._sum(x, None, 1 / self._drawn.clamp(min=1))

    def total(self, x: Tensor) -> Tensor:
        """An unbiased estimate of the sum over all neighbours: those drawn stand for the rest too."""
        return self._sum(x, None, self._stand_for)

    def normalised(self, x: Tensor) -> Tensor:
        """An unbiased estimate of GCN's sum D^-1/2 (A + I) D^-1/2 x, with the degrees of the whole graph."""
        weight, scale, loop = self._gcn
        out: Tensor = self._sum(x, weight, scale) + loop[:, None] * x[: self.num_targets]
        return out

    @cached_property
    def _drawn(self) -> Tensor:
        return self.indptr.diff().float()

    @cached_property
    def _stand_for(self) -> Tensor:
        """For each target, its neighbours in the graph divided by those drawn."""
        ids = self._sampled.nodes[: self.num_targets].cpu().numpy()
        degrees = torch.from_numpy(self._topology.indptr[ids + 1] - self._topology.indptr[ids])
        return degrees.to(self._drawn.device) / self._drawn.clamp(min=1)

    @cached_property
    def _gcn(self) -> tuple[Tensor, Tensor, Tensor]:
        """The weights of edges, the factors of targets and the weights of loops."""
        device = self.columns.device
        ids = self._sampled.nodes[: self.num_sources].cpu().numpy()
        root = torch.from_numpy(self._topology.looped_degree[ids]).to(device).pow(-0.5)
        root[torch.isinf(root)] = 0.0
        weight = root[self.columns.long()]
        if self.edge_weight is not None:
            weight = weight * self.edge_weight
        source, target = self.edge_index
        nodes = self._sampled.nodes
        weight = torch.where(nodes[source] == nodes[target], 0.0, weight)  # loops are added apart, once per target
        target_root = root[: self.num_targets]
        loop = torch.from_numpy(self._topology.loop_weight[ids[: self.num_targets]]).to(device)
        return weight, self._stand_for * target_root, loop * target_root * target_root

    def _sum(self, x: Tensor, weight: Tensor | None, scale: Tensor | None) -> Tensor:
        out: Tensor = _Sum.apply(x[: self.num_sources].contiguous(), self, weight, scale)  # type: ignore[no-untyped-call]
        return out


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, layer: Layer, weight: Tensor | None, scale: Tensor | None
    ) -> Tensor:
        ctx.of = (layer, weight, scale, x.shape)  # type: ignore[attr-defined]
        out = x.new_empty(layer.num_targets, x.shape[1])
        if out.numel():
            kernels_of(x).sum_neighbours(layer.indptr, layer.columns, weight, scale, x.detach(), out)
        return out

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        layer, weight, scale, shape = ctx.of  # type: ignore[attr-defined]
        if not ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            return None, None, None, None
        out = grads[0].new_empty(shape)
        if out.numel():
            starts, rows, edges = layer.transposed
            kernels_of(out).sum_readers(starts, rows, edges, weight, scale, grads[0].contiguous(), out)
        return out, None, None, None


@dataclass(frozen=True)
class Batch:
    """A batch with its features, named as in PyG: the first `batch_size` vertices are seeds, and `y` is theirs."""

    x: Tensor  # float32 [vertices, D]
    y: Tensor
    n_id: Tensor  # int64: the vertices, in the shards' numbering
    batch_size: int
    layers: tuple[Layer, ...]  # in the order of computation
    num_sampled_nodes: tuple[int, ...]  # new vertices of each hop, seeds first
    total: int  # seeds of all ranks in this step: divide a sum over seeds by it
    epoch: int
    step: int

    @property
    def num_nodes(self) -> int:
        return len(self.n_id)

    @property
    def edge_index(self) -> Tensor:
        """All edges drawn, as in PyG: sources, targets."""
        return self.layers[0].edge_index

    @property
    def edge_weight(self) -> Tensor | None:
        return self.layers[0].edge_weight

    @property
    def num_sampled_edges(self) -> tuple[int, ...]:
        """The edges drawn in each hop, from the seeds on, as PyG's trim_to_layer takes them."""
        ends = [layer.num_edges for layer in reversed(self.layers)]
        return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
