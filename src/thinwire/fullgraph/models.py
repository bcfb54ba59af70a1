"""Models that `thinwire train` offers: PyG's layers, one after the other."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv, SAGEConv


class Stack(nn.Module):
    """Layers with LayerNorm and ReLU in between."""

    def __init__(self, make: Callable[[int, int], nn.Module], widths: list[int], *, norm: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList([make(a, b) for a, b in pairwise(widths)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) if norm else nn.Identity() for width in widths[1:-1]])

    def forward(self, x: Tensor, edges: Tensor | None = None) -> Tensor:
        for conv, norm in zip(self.convs[:-1], self.norms, strict=True):
            x = torch.relu(norm(conv(x, edges)))
        out: Tensor = self.convs[-1](x, edges)
        return out


def build(model: str, *, num_features: int, num_classes: int, layers: int, hidden: int, norm: bool, seed: int) -> Stack:
    if model not in MODELS:
        raise ValueError(f"model is {model!r}; give one of {', '.join(MODELS)}")
    if layers < 1 or hidden < 1:
        raise ValueError(f"{layers} layers of {hidden}; give 1 or more of each")
    torch.manual_seed(seed)
    return Stack(MODELS[model], [num_features, *[hidden] * (layers - 1), num_classes], norm=norm)


def _gin(a: int, b: int) -> nn.Module:
    return GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)), train_eps=True)


MODELS: dict[str, Callable[[int, int], nn.Module]] = {"sage": SAGEConv, "gcn": GCNConv, "gin": _gin}
