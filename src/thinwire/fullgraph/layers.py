"""PyG layers whose aggregation is a fixed sparse matrix, on a shard, with the user's own weights.

y = A x, with the columns of A split into owned and halo columns: the owned part is computed while halo rows travel.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, GINConv, GraphConv, Linear, SAGEConv

from thinwire.fullgraph.aggregate import Adjacency
from thinwire.fullgraph.edges import Edges
from thinwire.fullgraph.halo import Halo
from thinwire.graphs import Shard

# Computes a layer's output rows from its input rows, its halo and its edge values.
Rule = Callable[[Tensor, Halo, Edges], Tensor]


class SplitSum:
    """Sums over in-neighbours with fixed weights: one matrix for owned columns, one for halo columns."""

    def __init__(self, num_owned: int, num_halo: int, rows: Tensor, columns: Tensor, weights: Tensor) -> None:
        remote = columns >= num_owned
        self._owned = self._part(num_owned, rows[~remote], columns[~remote], weights[~remote], num_owned)
        self._remote = self._part(num_owned, rows[remote], columns[remote] - num_owned, weights[remote], num_halo)

    def __call__(
        self, x_ND: Tensor, halo: Halo, beside: Callable[[], Tensor] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The sums, and the result of `beside`: work that needs no neighbours, done while halo rows travel."""
        if not halo.travels(x_ND):
            # Features don't change, so neither does their sum: it is kept.
            total = halo.once(x_ND, lambda: self._remote.add_to(self._owned @ x_ND, halo.ask(x_ND)), by=self)
            return total, beside() if beside else None
        halo.reads = self._remote
        token = halo.post(x_ND)
        owned_sum = self._owned @ x_ND
        beside_rows = beside() if beside else None
        return self._remote.add_to(owned_sum, halo.wait(token)), beside_rows

    @staticmethod
    def _part(num_rows: int, rows: Tensor, columns: Tensor, weights: Tensor, num_columns: int) -> Adjacency:
        new = torch.ones_like(rows, dtype=torch.bool)
        new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
        # Parallel edges become one edge with the sum of their weights: a CSR has no duplicates.
        weights = weights.new_zeros(int(new.sum())).index_add_(0, new.cumsum(0) - 1, weights)
        rows, columns = rows[new], columns[new]
        indptr = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows.device)
        torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
        return Adjacency.of(indptr, columns, weights, num_columns)


class Sums:
    """The sums that a model's layers need, each built once: most layers of a model share one."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._made: dict[Hashable, tuple[Tensor | None, int, SplitSum]] = {}

    def mean(self) -> SplitSum:
        degrees = self.shard.indptr.diff()
        return self._once("mean", None, lambda: self._over(1 / torch.repeat_interleave(degrees, degrees)))

    def weighted(self, weight: Tensor | None) -> SplitSum:
        return self._once("weighted", weight, lambda: self._over(self._or_ones(weight)))

    def normalised(self, weight: Tensor | None, halo: Halo, *, loops: bool, improved: bool) -> SplitSum:
        """GCN's normalised sum. The degrees of halo nodes are fetched from their owners."""
        kind = ("normalised", loops, improved)
        return self._once(kind, weight, lambda: self._normalise(weight, halo, loops=loops, improved=improved))

    def _once(self, kind: Hashable, weight: Tensor | None, make: Callable[[], SplitSum]) -> SplitSum:
        """One sum of each kind is kept, for the weights last used; weights hardly ever change."""
        version = 0 if weight is None else weight._version
        kept = self._made.get(kind)
        if kept is None or kept[0] is not weight or kept[1] != version:
            kept = self._made[kind] = (weight, version, make())
        return kept[2]

    def _over(self, weights: Tensor) -> SplitSum:
        rows, columns = self._ends()
        return SplitSum(self.shard.num_owned, self.shard.num_halo, rows, columns, weights)

    def _ends(self) -> tuple[Tensor, Tensor]:
        return torch.repeat_interleave(self._nodes(), self.shard.indptr.diff()), self.shard.indices.long()

    def _nodes(self) -> Tensor:
        return torch.arange(self.shard.num_owned, device=self.shard.indptr.device)

    def _or_ones(self, weight: Tensor | None) -> Tensor:
        ones = torch.ones(len(self.shard.indices), device=self.shard.indices.device)
        return ones if weight is None else weight.detach().float()

    def _normalise(self, weight: Tensor | None, halo: Halo, *, loops: bool, improved: bool) -> SplitSum:
        n = self.shard.num_owned
        rows, columns = self._ends()
        weights = self._or_ones(weight)
        if loops:
            # As in PyG: each node has one loop. Of several loops the last one counts; without weights a new loop has 1.
            is_loop = rows == columns
            loop_weight = torch.full((n,), 2.0 if improved and weight is not None else 1.0, device=weights.device)
            loop_weight[rows[is_loop]] = weights[is_loop]
            rows = torch.cat((rows[~is_loop], self._nodes()))
            columns = torch.cat((columns[~is_loop], self._nodes()))
            weights = torch.cat((weights[~is_loop], loop_weight))
            order = torch.argsort(rows * (n + self.shard.num_halo) + columns, stable=True)
            rows, columns, weights = rows[order], columns[order], weights[order]
        degrees = torch.bincount(rows, weights.double(), minlength=n).float()
        degrees = torch.cat((degrees, halo.ask(degrees[:, None]).squeeze(1)))
        scale = degrees.pow(-0.5)
        scale[torch.isinf(scale)] = 0.0
        return SplitSum(n, self.shard.num_halo, rows, columns, scale[rows] * weights * scale[columns])


def sage(conv: SAGEConv, sums: Sums) -> Rule | None:
    """y = W_l mean(x_j) + W_r x_i."""
    if conv.aggr not in ("mean", "sum", "add") or conv.project:
        return None
    total = sums.mean() if conv.aggr == "mean" else sums.weighted(None)

    def rule(x: Tensor, halo: Halo, _: Edges) -> Tensor:
        right = getattr(conv, "lin_r", None)
        root = partial(right, x) if conv.root_weight and right is not None else None
        out = _narrow(conv.lin_l, x, halo, total, root)
        return functional.normalize(out, p=2.0, dim=-1) if conv.normalize else out

    return rule


def gcn(conv: GCNConv, sums: Sums) -> Rule | None:
    """y = D^-1/2 (A + I) D^-1/2 x W, with the degrees of the whole graph."""
    if conv.aggr not in ("sum", "add"):
        return None

    def rule(x: Tensor, halo: Halo, edges: Edges) -> Tensor:
        if conv.normalize:
            total = sums.normalised(edges.weight, halo, loops=conv.add_self_loops, improved=conv.improved)
        else:
            total = sums.weighted(edges.weight)
        out = _narrow(conv.lin, x, halo, total, map_first=True)
        return out if conv.bias is None else out + conv.bias

    return rule


def gin(conv: GINConv, sums: Sums) -> Rule | None:
    """y = MLP((1 + eps) x_i + sum(x_j))."""
    if conv.aggr not in ("sum", "add"):
        return None
    total = sums.weighted(None)

    def rule(x: Tensor, halo: Halo, _: Edges) -> Tensor:
        neighbours, root = total(x, halo, lambda: (1 + conv.eps) * x)
        assert root is not None
        out: Tensor = conv.nn(neighbours + root)
        return out

    return rule


def graph(conv: GraphConv, sums: Sums) -> Rule | None:
    """y = W_1 x_i + W_2 sum(w_ij x_j)."""
    if conv.aggr not in ("sum", "add"):
        return None

    def rule(x: Tensor, halo: Halo, edges: Edges) -> Tensor:
        return _narrow(conv.lin_rel, x, halo, sums.weighted(edges.weight), partial(conv.lin_root, x))

    return rule


# Modules whose forward is x W + b and nothing else.
PLAIN = (nn.Linear, Linear)

# A function returns None if the layer's options make its aggregation anything but a fixed matrix.
LAYERS: dict[type, Callable[[Any, Sums], Rule | None]] = {
    SAGEConv: sage,
    GCNConv: gcn,
    GINConv: gin,
    GraphConv: graph,
}


def _narrow(
    linear: nn.Module,
    x: Tensor,
    halo: Halo,
    total: SplitSum,
    root: Callable[[], Tensor] | None = None,
    *,
    map_first: bool = False,
) -> Tensor:
    """A (x W) = (A x) W: the narrower of x W and x is sent; features are fetched only once. Adds the rows of `root`.

    A `linear` that is more than a linear map (an adapter around it, a hook on it) is called as it is, where the layer
    calls it: before the sum with `map_first`, else after it.
    """
    if type(linear) not in PLAIN or linear._forward_pre_hooks or linear._forward_hooks:
        out, root_rows = total(linear(x) if map_first else x, halo, root)
        out = out if map_first else linear(out)
        return out if root_rows is None else out + root_rows
    weight: Tensor = linear.weight  # type: ignore[assignment]
    bias: Tensor | None = linear.bias  # type: ignore[assignment]
    if not halo.is_features(x) and weight.shape[0] < weight.shape[1]:
        out, root_rows = total(functional.linear(x, weight), halo, root)
        out = out if bias is None else out + bias
    else:
        neighbours, root_rows = total(x, halo, root)
        out = functional.linear(neighbours, weight, bias)
    return out if root_rows is None else out + root_rows
