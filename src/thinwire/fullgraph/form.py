"""The forward of a message passing layer on a shard, with the halo given by the caller."""

from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from thinwire.fullgraph.edges import Call, Edges, Unsupported
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.layers import LAYERS, Rule, Sums
from thinwire.fullgraph.split_rows import SplitRows


class Form:
    """Uses a fixed sparse matrix if the layer's aggregation is one, else the layer's own code on parts of the rows."""

    def __init__(self, conv: MessagePassing, name: str, sums: Sums) -> None:
        self.name = name or type(conv).__name__
        self._conv = conv
        if conv.flow != "source_to_target":
            raise Unsupported(f"{self.name}: {type(conv).__name__}(flow={conv.flow!r}); give 'source_to_target'")
        self._call = Call(self.name, conv.forward, sums.shard)
        make = LAYERS.get(type(conv))
        matrix = make(conv, sums) if make is not None else None
        self._rule: Rule = matrix or SplitRows(conv, self.name, sums.shard)
        self._is_matrix = matrix is not None

    def read(self, *arguments: Any, **named: Any) -> tuple[Tensor, Edges]:
        """The rows of a call and its other arguments."""
        x, edges = self._call.read(*arguments, **named)
        if self._is_matrix and edges.learned:
            raise Unsupported(
                f"{self.name}: {type(self._conv).__name__} with learned edge weights is not distributed; detach them, "
                "or use a layer that learns from edge features (GATv2Conv, GINEConv, NNConv)"
            )
        return x, edges

    def rows(self, x_ND: Tensor, halo: Halo, edges: Edges) -> Tensor:
        return self._rule(x_ND, halo, edges)
