"""PyG layers whose aggregation is a fixed sparse matrix, on a shard: the user's own weights, our own messages.

y = A x with A's columns split into owned and halo ones: the owned part is computed while the halo travels.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv

from thinwire.fullgraph.aggregate import Adjacency
from thinwire.fullgraph.edges import Edges
from thinwire.fullgraph.halo import Halo
from thinwire.graphs import Shard

# A layer's rows from those before it, the halo between them and what goes along with edges.
Rule = Callable[[Tensor, Halo, Edges], Tensor]


class SplitSum:
    """Sums over in-neighbours with fixed weights, owned columns apart from halo ones."""

    def __init__(self, num_owned: int, num_halo: int, rows: Tensor, columns: Tensor, weights: Tensor) -> None:
        remote = columns >= num_owned
        self._own = self._part(num_owned, rows[~remote], columns[~remote], weights[~remote], num_owned)
        self._far = self._part(num_owned, rows[remote], columns[remote] - num_owned, weights[remote], num_halo)

    def __call__(self, x_ND: Tensor, halo: Halo) -> Tensor:
        if halo.door.world_size == 1:
            return self._own @ x_ND
        if not halo.travels(x_ND):
            return self._own @ x_ND + self._far @ halo.fetch(x_ND)
        token = halo.post(x_ND)
        own = self._own @ x_ND
        return own + self._far @ halo.wait(token)

    @staticmethod
    def _part(num_rows: int, rows: Tensor, columns: Tensor, weights: Tensor, num_columns: int) -> Adjacency:
        indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
        return Adjacency.of(indptr, columns, weights, num_columns)


def sage(conv: SAGEConv, shard: Shard) -> Rule | None:
    """y = W_l mean(x_j) + W_r x_i."""
    if conv.aggr not in ("mean", "sum", "add") or conv.project:
        return None
    weights = torch.ones(len(shard.indices))
    if conv.aggr == "mean":
        weights /= torch.repeat_interleave(shard.indptr.diff(), shard.indptr.diff())
    total = _sum_over(shard, weights)
    left, right = conv.lin_l, getattr(conv, "lin_r", None)

    def rule(x: Tensor, halo: Halo, _: Edges) -> Tensor:
        out = _narrow(left, x, halo, total)
        if conv.root_weight and right is not None:
            out = out + right(x)
        return functional.normalize(out, p=2.0, dim=-1) if conv.normalize else out

    return rule


def gcn(conv: GCNConv, shard: Shard) -> Rule:
    """y = D^-1/2 (A + I) D^-1/2 x W, degrees of the whole graph."""
    sums = _ByWeight(lambda weight, halo: _normalised(conv, shard, weight, halo) if conv.normalize else None, shard)

    def rule(x: Tensor, halo: Halo, edges: Edges) -> Tensor:
        out = _narrow(conv.lin, x, halo, sums.of(edges.weight, halo))
        return out if conv.bias is None else out + conv.bias

    return rule


def gin(conv: GINConv, shard: Shard) -> Rule:
    """y = MLP((1 + eps) x_i + sum(x_j))."""
    total = _sum_over(shard, torch.ones(len(shard.indices)))

    def rule(x: Tensor, halo: Halo, _: Edges) -> Tensor:
        out: Tensor = conv.nn(total(x, halo) + (1 + conv.eps) * x)
        return out

    return rule


def graph(conv: GraphConv, shard: Shard) -> Rule | None:
    """y = W_1 x_i + W_2 sum(w_ij x_j)."""
    if conv.aggr not in ("sum", "add"):
        return None
    sums = _ByWeight(lambda weight, halo: None, shard)

    def rule(x: Tensor, halo: Halo, edges: Edges) -> Tensor:
        out: Tensor = _narrow(conv.lin_rel, x, halo, sums.of(edges.weight, halo)) + conv.lin_root(x)
        return out

    return rule


# None where a layer's options make its aggregation something else than a fixed matrix.
LAYERS: dict[type, Callable[[Any, Shard], Rule | None]] = {
    SAGEConv: sage,
    GCNConv: gcn,
    GINConv: gin,
    GraphConv: graph,
}


class _ByWeight:
    """The sum for the edge weights of a call, made when they are first seen. (Others make it anew.)"""

    def __init__(self, normalise: Callable[[Tensor | None, Halo], SplitSum | None], shard: Shard) -> None:
        self._normalise = normalise
        self._shard = shard
        self._made: tuple[Tensor | None, int, SplitSum] | None = None

    def of(self, weight: Tensor | None, halo: Halo) -> SplitSum:
        version = 0 if weight is None else weight._version
        if self._made is None or self._made[0] is not weight or self._made[1] != version:
            made = self._normalise(weight, halo) or _sum_over(self._shard, _or_ones(self._shard, weight))
            self._made = (weight, version, made)
        return self._made[2]


def _narrow(linear: nn.Module, x: Tensor, halo: Halo, total: SplitSum) -> Tensor:
    """A (x W) = (A x) W: what travels is the narrower of the two. Features are fetched once anyway."""
    weight: Tensor = linear.weight  # type: ignore[assignment]
    bias: Tensor | None = linear.bias  # type: ignore[assignment]
    if not halo.is_features(x) and weight.shape[0] < weight.shape[1]:
        out = total(functional.linear(x, weight), halo)
        return out if bias is None else out + bias
    return functional.linear(total(x, halo), weight, bias)


def _sum_over(shard: Shard, weights: Tensor) -> SplitSum:
    columns, rows = shard.edge_index
    return SplitSum(shard.num_owned, shard.num_halo, rows, columns, weights)


def _or_ones(shard: Shard, weight: Tensor | None) -> Tensor:
    return torch.ones(len(shard.indices)) if weight is None else weight.detach().float()


def _normalised(conv: GCNConv, shard: Shard, weight: Tensor | None, halo: Halo) -> SplitSum:
    """The sum with GCN's weights; the owners tell the degrees of halo nodes."""
    n = shard.num_owned
    columns, rows = shard.edge_index
    weights = _or_ones(shard, weight)
    if conv.add_self_loops:
        # As in PyG: just one loop at each node, of several the last one counts, and without weights a new one has 1.
        loops = rows == columns
        loop_weight = torch.full((n,), 2.0 if conv.improved and weight is not None else 1.0)
        loop_weight[rows[loops]] = weights[loops]
        rows = torch.cat((rows[~loops], torch.arange(n)))
        columns = torch.cat((columns[~loops], torch.arange(n)))
        weights = torch.cat((weights[~loops], loop_weight))
        order = torch.argsort(rows * (n + shard.num_halo) + columns, stable=True)
        rows, columns, weights = rows[order], columns[order], weights[order]
    degrees = torch.bincount(rows, weights.double(), minlength=n).float()
    if halo.door.world_size > 1:
        degrees = torch.cat((degrees, halo.ask(degrees[:, None]).squeeze(1)))
    scale = degrees.pow(-0.5)
    scale[torch.isinf(scale)] = 0.0
    return SplitSum(n, shard.num_halo, rows, columns, scale[rows] * weights * scale[columns])
