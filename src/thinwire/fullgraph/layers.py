"""PyG layers whose aggregation is a fixed sparse matrix, on a shard: the user's own weights, our own messages.

y = A x with A's columns split into owned and halo ones: the owned part is computed while the halo travels.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv

from thinwire.fullgraph.aggregate import Adjacency
from thinwire.fullgraph.halo import Halo
from thinwire.graphs import Shard


class Unsupported(TypeError):
    """A layer that can't be distributed. The message names it and says why."""


class SplitSum:
    """Sums over in-neighbours with fixed weights, owned columns apart from halo ones."""

    def __init__(self, shard: Shard, weights: Tensor) -> None:
        n = shard.num_owned
        remote = shard.indices >= n
        counts = torch.repeat_interleave(torch.arange(n), shard.indptr.diff())
        self._own = self._part(shard, weights, ~remote, counts, 0, n)
        self._far = self._part(shard, weights, remote, counts, n, shard.num_halo)

    def __call__(self, x_ND: Tensor, halo: Halo) -> Tensor:
        if halo.door.world_size == 1:
            return self._own @ x_ND
        if not halo.training or not x_ND.requires_grad:
            return self._own @ x_ND + self._far @ halo.fetch(x_ND)
        token = halo.post(x_ND)
        own = self._own @ x_ND
        return own + self._far @ halo.wait(token, x_ND.shape[1])

    @staticmethod
    def _part(shard: Shard, weights: Tensor, chosen: Tensor, rows: Tensor, first: int, num_columns: int) -> Adjacency:
        indptr = torch.zeros(shard.num_owned + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(rows[chosen], minlength=shard.num_owned), 0, out=indptr[1:])
        return Adjacency.of(indptr, shard.indices[chosen] - first, weights[chosen], num_columns)


class Distributed(nn.Module):
    """A PyG layer on a shard, called like the layer itself. What is given as edges is ignored: they are the shard's."""

    def __init__(self, conv: nn.Module, halo: Halo, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = conv
        self.halo = halo
        self._forward = forward

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        self.halo.training = self.training
        return self._forward(x)


def sage(conv: SAGEConv, shard: Shard, halo: Halo) -> Callable[[Tensor], Tensor]:
    """y = W_l mean(x_j) + W_r x_i."""
    if conv.aggr not in ("mean", "sum", "add") or conv.project:
        raise Unsupported(
            f"SAGEConv(aggr={conv.aggr!r}, project={conv.project}): give aggr 'mean' or 'sum', no project"
        )
    weights = torch.ones(len(shard.indices))
    if conv.aggr == "mean":
        weights /= torch.repeat_interleave(shard.indptr.diff(), shard.indptr.diff())
    total = SplitSum(shard, weights)
    left, right = conv.lin_l, getattr(conv, "lin_r", None)

    def forward(x: Tensor) -> Tensor:
        out = _narrow(left, x, halo, total)
        if conv.root_weight and right is not None:
            out = out + right(x)
        return functional.normalize(out, p=2.0, dim=-1) if conv.normalize else out

    return forward


def gcn(conv: GCNConv, shard: Shard, halo: Halo) -> Callable[[Tensor], Tensor]:
    """y = D^-1/2 (A + I) D^-1/2 x W, degrees of the whole graph."""
    if not conv.normalize or not conv.add_self_loops or conv.improved:
        raise Unsupported("GCNConv with normalize=False, add_self_loops=False or improved=True is not distributed yet")
    looped = _with_loops(shard)
    total = SplitSum(*looped)

    def forward(x: Tensor) -> Tensor:
        out = _narrow(conv.lin, x, halo, total)
        return out if conv.bias is None else out + conv.bias

    return forward


def gin(conv: GINConv, shard: Shard, halo: Halo) -> Callable[[Tensor], Tensor]:
    """y = MLP((1 + eps) x_i + sum(x_j))."""
    total = SplitSum(shard, torch.ones(len(shard.indices)))

    def forward(x: Tensor) -> Tensor:
        return conv.nn(total(x, halo) + (1 + conv.eps) * x)

    return forward


def graph(conv: GraphConv, shard: Shard, halo: Halo) -> Callable[[Tensor], Tensor]:
    """y = W_1 x_i + W_2 sum(w_ij x_j)."""
    if conv.aggr not in ("sum", "add"):
        raise Unsupported(f"GraphConv(aggr={conv.aggr!r}): give aggr 'add'")
    total = SplitSum(shard, _edge_weights(shard))

    def forward(x: Tensor) -> Tensor:
        return _narrow(conv.lin_rel, x, halo, total) + conv.lin_root(x)

    return forward


LAYERS: dict[type, Callable[[Any, Shard, Halo], Callable[[Tensor], Tensor]]] = {
    SAGEConv: sage,
    GCNConv: gcn,
    GINConv: gin,
    GraphConv: graph,
}


def _narrow(linear: nn.Module, x: Tensor, halo: Halo, total: SplitSum) -> Tensor:
    """A (x W) = (A x) W: what travels is the narrower of the two. Features are fetched once anyway."""
    weight: Tensor = linear.weight  # type: ignore[assignment]
    bias: Tensor | None = linear.bias  # type: ignore[assignment]
    if not halo.is_features(x) and weight.shape[0] < weight.shape[1]:
        out = total(functional.linear(x, weight), halo)
        return out if bias is None else out + bias
    return functional.linear(total(x, halo), weight, bias)


def _edge_weights(shard: Shard) -> Tensor:
    return torch.ones(len(shard.indices)) if shard.edge_weight is None else shard.edge_weight


def _with_loops(shard: Shard) -> tuple[Shard, Tensor]:
    """The shard's edges with just one loop at each owned node, and GCN's weights of them."""
    n = shard.num_owned
    rows = torch.repeat_interleave(torch.arange(n), shard.indptr.diff())
    columns, weights = shard.indices.long(), _edge_weights(shard)
    loops = rows == columns
    loop_weight = torch.ones(n)
    loop_weight[rows[loops]] = weights[loops]
    rows = torch.cat((rows[~loops], torch.arange(n)))
    columns = torch.cat((columns[~loops], torch.arange(n)))
    weights = torch.cat((weights[~loops], loop_weight))
    order = torch.argsort(rows * (n + shard.num_halo) + columns, stable=True)
    rows, columns, weights = rows[order], columns[order], weights[order]
    scale = shard.looped_weight.pow(-0.5)
    scale[torch.isinf(scale)] = 0.0
    indptr = torch.zeros(n + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(rows, minlength=n), 0, out=indptr[1:])
    return replace(shard, indptr=indptr, indices=columns.int()), scale[rows] * weights * scale[columns]
