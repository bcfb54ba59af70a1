"""The models of `thinwire train` on a batch: PyG's layers with their weights, each on just the rows it needs."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from thinwire.minibatch.batch import Layer
from thinwire.training.models import Stack


def forward(model: Stack, x: Tensor, layers: tuple[Layer, ...]) -> Tensor:
    """The model's output for the targets of the last layer."""
    for number, layer in enumerate(layers):
        x = apply(model, number, x, layer)
    return x


def apply(model: Stack, number: int, x: Tensor, layer: Layer) -> Tensor:
    """One layer of the model, with its norm, activation and dropout."""
    conv = model.convs[number]
    x = RULES[type(conv)](conv, x, layer)
    return model.after(number, x)


def sage(conv: SAGEConv, x: Tensor, layer: Layer) -> Tensor:
    """The sum comes first, since it leaves fewer rows for the linear map."""
    out: Tensor = conv.lin_l(layer.mean(x))
    return out + conv.lin_r(x[: layer.num_targets])


def gcn(conv: GCNConv, x: Tensor, layer: Layer) -> Tensor:
    out: Tensor = conv.lin(layer.normalised(x))
    return out if conv.bias is None else out + conv.bias


def gin(conv: GINConv, x: Tensor, layer: Layer) -> Tensor:
    out: Tensor = conv.nn(layer.total(x) + (1 + conv.eps) * x[: layer.num_targets])
    return out


def gat(conv: GATConv, x: Tensor, layer: Layer) -> Tensor:
    """Attention over edges, by PyG's own forward."""
    out: Tensor = conv((x[: layer.num_sources], x[: layer.num_targets]), layer.edge_index)
    return out


RULES: dict[type[nn.Module], Callable[[Any, Tensor, Layer], Tensor]] = {
    SAGEConv: sage,
    GCNConv: gcn,
    GINConv: gin,
    GATConv: gat,
}
