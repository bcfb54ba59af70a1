"""Models that `thinwire train` offers: PyG's layers, one after the other."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv


class Stack(nn.Module):
    """Layers with norm, ReLU and dropout in between."""

    def __init__(
        self, make: Callable[[int, int], nn.Module], widths: list[int], *, norm: str, dropout: float, weighted: bool
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList([make(a, b) for a, b in pairwise(widths)])
        self.norms = nn.ModuleList([NORMS[norm](width) for width in widths[1:-1]])
        self.dropout = nn.Dropout(dropout)
        self._weighted = weighted  # whether layers take edge weights

    def forward(self, x: Tensor, edge_index: Tensor | None, edge_weight: Tensor | None = None) -> Tensor:
        along = {"edge_weight": edge_weight} if self._weighted and edge_weight is not None else {}
        for conv, norm in zip(self.convs[:-1], self.norms, strict=True):
            x = self.dropout(torch.relu(norm(conv(x, edge_index, **along))))
        out: Tensor = self.convs[-1](x, edge_index, **along)
        return out


def build(
    model: str,
    *,
    num_features: int,
    num_classes: int,
    layers: int,
    hidden: int,
    norm: str = "layer",
    dropout: float = 0.0,
    seed: int = 0,
) -> Stack:
    if model not in MODELS:
        raise ValueError(f"model is {model!r}; give one of {', '.join(MODELS)}")
    if norm not in NORMS:
        raise ValueError(f"norm is {norm!r}; give one of {', '.join(NORMS)}")
    widths = widths_of(num_features, num_classes, layers=layers, hidden=hidden)
    torch.manual_seed(seed)
    return Stack(MODELS[model], widths, norm=norm, dropout=dropout, weighted=model == "gcn")


def widths_of(num_features: int, num_classes: int, *, layers: int, hidden: int) -> list[int]:
    if layers < 1 or hidden < 1:
        raise ValueError(f"{layers} layers of {hidden}; give 1 or more of each")
    return [num_features, *[hidden] * (layers - 1), num_classes]


def _gin(a: int, b: int) -> nn.Module:
    return GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)), train_eps=True)


MODELS: dict[str, Callable[[int, int], nn.Module]] = {"sage": SAGEConv, "gcn": GCNConv, "gat": GATConv, "gin": _gin}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "batch": nn.BatchNorm1d,
    "none": lambda width: nn.Identity(),
}
