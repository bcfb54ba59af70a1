"""PyG layers whose aggregation is a fixed sparse matrix, on a shard: the user's own weights, our own messages.

y = A x with A's columns split into owned and halo ones: the owned part is computed while the halo travels.
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

# A layer's rows from those before it, the halo between them and what goes along with edges.
Rule = Callable[[Tensor, Halo, Edges], Tensor]


class SplitSum:
    """Sums over in-neighbours with fixed weights, owned columns apart from halo ones."""

    def __init__(self, num_owned: int, num_halo: int, rows: Tensor, columns: Tensor, weights: Tensor) -> None:
        remote = columns >= num_owned
        self._own = self._part(num_owned, rows[~remote], columns[~remote], weights[~remote], num_owned)
        self._far = self._part(num_owned, rows[remote], columns[remote] - num_owned, weights[remote], num_halo)

    def __call__(
        self, x_ND: Tensor, halo: Halo, beside: Callable[[], Tensor] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The sums, and what `beside` gives: work that needs no neighbours, done while the halo travels."""
        if not halo.travels(x_ND):
            # Of features the sum itself is kept: it does not change either.
            total = halo.once(x_ND, lambda: self._far.add_to(self._own @ x_ND, halo.ask(x_ND)), by=self)
            return total, beside() if beside else None
        halo.reads = self._far
        token = halo.post(x_ND)
        own = self._own @ x_ND
        more = beside() if beside else None
        return self._far.add_to(own, halo.wait(token)), more

    @staticmethod
    def _part(num_rows: int, rows: Tensor, columns: Tensor, weights: Tensor, num_columns: int) -> Adjacency:
        new = torch.ones_like(rows, dtype=torch.bool)
        new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
        # Edges of the same two nodes are one, of their weights' sum: a CSR has no duplicates.
        weights = weights.new_zeros(int(new.sum())).index_add_(0, new.cumsum(0) - 1, weights)
        rows, columns = rows[new], columns[new]
        indptr = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows.device)
        torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
        return Adjacency.of(indptr, columns, weights, num_columns)


class Sums:
    """The sums that a model's layers take, each made once: most layers of a model share one."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._made: dict[Hashable, tuple[Tensor | None, int, SplitSum]] = {}

    def mean(self) -> SplitSum:
        degrees = self.shard.indptr.diff()
        return self._once("mean", None, lambda: self._over(1 / torch.repeat_interleave(degrees, degrees)))

    def weighted(self, weight: Tensor | None) -> SplitSum:
        return self._once("weighted", weight, lambda: self._over(self._or_ones(weight)))

    def normalised(self, weight: Tensor | None, halo: Halo, *, loops: bool, improved: bool) -> SplitSum:
        """GCN's; the owners tell the degrees of halo nodes."""
        kind = ("normalised", loops, improved)
        return self._once(kind, weight, lambda: self._normalise(weight, halo, loops=loops, improved=improved))

    def _once(self, kind: Hashable, weight: Tensor | None, make: Callable[[], SplitSum]) -> SplitSum:
        """Of each kind the one for the weights last seen, which hardly ever change."""
        version = 0 if weight is None else weight._version
        made = self._made.get(kind)
        if made is None or made[0] is not weight or made[1] != version:
            made = self._made[kind] = (weight, version, make())
        return made[2]

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
            # As in PyG: one loop a node, of several the last one counts, and without weights a new one has 1.
            own = rows == columns
            loop_weight = torch.full((n,), 2.0 if improved and weight is not None else 1.0, device=weights.device)
            loop_weight[rows[own]] = weights[own]
            rows = torch.cat((rows[~own], self._nodes()))
            columns = torch.cat((columns[~own], self._nodes()))
            weights = torch.cat((weights[~own], loop_weight))
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
    """y = D^-1/2 (A + I) D^-1/2 x W, degrees of the whole graph."""
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
        neighbours, own = total(x, halo, lambda: (1 + conv.eps) * x)
        assert own is not None
        out: Tensor = conv.nn(neighbours + own)
        return out

    return rule


def graph(conv: GraphConv, sums: Sums) -> Rule | None:
    """y = W_1 x_i + W_2 sum(w_ij x_j)."""
    if conv.aggr not in ("sum", "add"):
        return None

    def rule(x: Tensor, halo: Halo, edges: Edges) -> Tensor:
        return _narrow(conv.lin_rel, x, halo, sums.weighted(edges.weight), partial(conv.lin_root, x))

    return rule


# Whose forward is x W + b and nothing else.
PLAIN = (nn.Linear, Linear)

# None where a layer's options make its aggregation something else than a fixed matrix.
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
    """A (x W) = (A x) W: what travels is the narrower of the two. Features are fetched once anyway. Plus the root's.

    What is more than a linear map (an adapter around it, a hook on it) is called as it is, where the layer calls it.
    """
    if type(linear) not in PLAIN or linear._forward_pre_hooks or linear._forward_hooks:
        out, more = total(linear(x) if map_first else x, halo, root)
        out = out if map_first else linear(out)
        return out if more is None else out + more
    weight: Tensor = linear.weight  # type: ignore[assignment]
    bias: Tensor | None = linear.bias  # type: ignore[assignment]
    if not halo.is_features(x) and weight.shape[0] < weight.shape[1]:
        out, more = total(functional.linear(x, weight), halo, root)
        out = out if bias is None else out + bias
    else:
        neighbours, more = total(x, halo, root)
        out = functional.linear(neighbours, weight, bias)
    return out if more is None else out + more
