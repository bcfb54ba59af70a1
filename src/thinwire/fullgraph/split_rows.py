"""Any PyG layer that takes (x_src, x_dst), on a shard: central rows while halo rows travel, then marginal rows.

The layer's own forward is called once for each half of the rows, with just the sources that this half reads. A layer
with a batch norm or dropout inside is called once, on all rows: those modules must see all rows together.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.utils import add_self_loops

from thinwire.fullgraph.edges import Edges, Unsupported
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.sequences import is_ordered, order, padded
from thinwire.graphs import Shard


@dataclass(frozen=True)
class _Half:
    """Rows [first, last) of a CSR as a graph: sources are renumbered, targets count from 0."""

    first: int
    last: int
    edges: slice
    sources: Tensor  # columns that these rows read, ascending
    edge_index: Tensor
    targets: Tensor  # of all edges; without loops if we add loops
    apart: Tensor | None  # mask of edges that are no loops; None if loops stay as they are

    @staticmethod
    def of(indptr: Tensor, columns: Tensor, num_columns: int, first: int, last: int, *, loops: bool) -> "_Half":
        edges = slice(int(indptr[first]), int(indptr[last]))
        nodes = torch.arange(first, last, device=indptr.device)
        rows = torch.repeat_interleave(nodes, indptr[first : last + 1].diff())
        columns = columns[edges].long()
        apart = rows != columns if loops else None
        targets = rows - first
        if apart is not None:
            rows, columns, targets = rows[apart], columns[apart], targets[apart]
            columns = torch.cat((columns, nodes))
        read = torch.zeros(num_columns, dtype=torch.bool, device=indptr.device)
        read[columns] = True
        places = read.cumsum(0) - 1
        ends = targets if apart is None else torch.cat((targets, nodes - first))
        sources = read.nonzero().squeeze(1)
        return _Half(first, last, edges, sources, torch.stack((places[columns], ends)), targets, apart)

    def values(self, all_values: Tensor, fill: Any) -> Tensor:
        """The values of this half's edges; for added loops, the values that PyG fills in."""
        values = all_values[self.edges]
        if self.apart is None:
            return values
        at = torch.stack((self.targets, self.targets))
        filled: Tensor = add_self_loops(at, values[self.apart], fill, self.last - self.first)[1]
        return filled


class SplitRows:
    """The rule of a layer: y from x, by the layer's own forward on each half."""

    def __init__(self, conv: nn.Module, name: str, shard: Shard) -> None:
        _expect_pairs(conv, name)
        self._conv = conv
        self._name = f"{name}: {type(conv).__name__}"
        self._forward: Callable[..., Any] = conv.forward
        self._fill = getattr(conv, "fill_value", None)
        # PyG adds loops (i, i) for i = 0, 1, ...: right only if sources and targets are the same nodes. So we add them.
        self._loops = getattr(conv, "add_self_loops", False) is True
        self._checked = False
        self._shard = shard
        together = any(isinstance(module, (_BatchNorm, nn.Dropout)) for module in conv.modules())
        self._cut = 0 if together else shard.num_central
        self._halves: tuple[_Half, _Half] | None = None
        self._order: Tensor | None = None  # of edges, if the layer depends on the order of neighbours
        self._most: int | None = None  # most neighbours of a node on any rank, if the layer depends on it

    def __call__(self, x_ND: Tensor, halo: Halo, edges: Edges) -> Tensor:
        if not self._checked:
            self._check(x_ND.shape[1], edges)
        if self._halves is None:
            self._halves = self._cut_in_two(halo)
        central, marginal = self._halves
        if self._order is not None:
            edges = Edges({name: value[self._order] for name, value in edges.values.items()}, edges.others)
        token = halo.post(x_ND) if halo.travels(x_ND) else None
        parts = [self._rows(central, x_ND, x_ND, edges, self._most)] if central.last else []
        x_HD = halo.once(x_ND, lambda: halo.ask(x_ND)) if token is None else halo.wait(token)
        if marginal.last > marginal.first or not parts:
            parts.append(self._rows(marginal, torch.cat((x_ND, x_HD)), x_ND, edges, self._most))
            y_ND = torch.cat(parts)
        else:
            # No row here reads the halo, but other ranks may read our rows: their gradients arrive through it.
            y_ND = parts[0] + 0 * x_HD.sum()
        self._checked = True
        return y_ND

    def _cut_in_two(self, halo: Halo) -> tuple[_Half, _Half]:
        shard, columns = self._shard, self._shard.indices
        if is_ordered(self._conv):
            self._order, self._most = order(shard, halo), halo.most(shard.indptr.diff())
            columns = columns[self._order]
        n, total = shard.num_owned, shard.num_owned + shard.num_halo
        central, marginal = (
            _Half.of(shard.indptr, columns, total, first, last, loops=self._loops)
            for first, last in ((0, self._cut), (self._cut, n))
        )
        return central, marginal

    def _rows(self, half: _Half, read: Tensor, x_ND: Tensor, edges: Edges, most: int | None) -> Tensor:
        values = {name: half.values(value, self._fill) for name, value in edges.values.items()}
        pair = (read.index_select(0, half.sources), x_ND[half.first : half.last])
        before = getattr(self._conv, "add_self_loops", None)
        if self._loops:
            self._conv.add_self_loops = False  # type: ignore[assignment]
        try:
            with padded(self._conv, most):
                out: Tensor = self._forward(pair, half.edge_index, **values, **edges.others)
        except Exception as error:
            if self._checked:  # the layer has worked before, so its kind is not the cause
                raise
            raise self._unsupported(error) from error
        finally:
            if self._loops:
                self._conv.add_self_loops = before  # type: ignore[assignment]
        return out

    def _unsupported(self, error: Exception) -> Unsupported:
        return Unsupported(f"{self._name} does not work on (x_src, x_dst): {type(error).__name__}: {error}")

    def _check(self, width: int, edges: Edges) -> None:
        """Compare a graph of six nodes, whole and in two halves: finds layers that look beyond in-neighbours."""
        randomness = torch.Generator().manual_seed(0)
        x = torch.randn(6, width, generator=randomness)
        indptr = torch.tensor([0, 2, 4, 6, 9, 11, 13])
        columns = torch.tensor([1, 2, 0, 1, 0, 1, 0, 3, 5, 2, 3, 1, 4])
        rows = torch.repeat_interleave(torch.arange(6), indptr.diff())
        some = torch.randint(max(1, len(next(iter(edges.values.values()), x))), (13,), generator=randomness)
        values = {name: value.detach()[some] for name, value in edges.values.items() if len(value)}
        small = Edges(values, edges.others)
        device = next((parameter.device for parameter in self._conv.parameters()), x.device)
        x, indptr, columns, rows = x.to(device), indptr.to(device), columns.to(device), rows.to(device)
        training = [module.training for module in self._conv.modules()]
        self._conv.eval()
        try:
            with torch.no_grad():
                whole = self._forward(x, torch.stack((columns, rows)), **values, **edges.others)
                halves = [_Half.of(indptr, columns, 6, first, first + 3, loops=self._loops) for first in (0, 3)]
                split = torch.cat([self._rows(half, x, x, small, most=3) for half in halves])
        except Unsupported:
            raise
        except Exception as error:
            raise self._unsupported(error) from error
        finally:
            for module, was in zip(self._conv.modules(), training, strict=True):
                module.training = was
        if not torch.allclose(whole, split, rtol=1e-4, atol=1e-5):
            raise Unsupported(
                f"{self._name} gives other rows on a part of a graph than on the whole: it looks further than at "
                "in-neighbours (several hops, degrees of sources, sums over all nodes), and can't be distributed"
            )


def _expect_pairs(conv: nn.Module, name: str) -> None:
    first = next(iter(inspect.signature(conv.forward).parameters.values()))
    takes = str(first.annotation)
    if first.annotation not in (inspect.Parameter.empty, Any) and not ("uple" in takes or "Pair" in takes):
        raise Unsupported(
            f"{name}: {type(conv).__name__} takes one set of nodes only ({first.name}: {takes}), not (x_src, x_dst): "
            "its rows can't be computed from copies of remote ones"
        )
