"""Models of `thinwire train`: a stack of PyG layers, or a model that the user's own function makes."""

import importlib
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from thinwire.training.job import Job


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
        weights = {"edge_weight": edge_weight} if self._weighted and edge_weight is not None else {}
        for number, conv in enumerate(self.convs):
            x = self.after(number, conv(x, edge_index, **weights))
        return x

    def after(self, number: int, x: Tensor) -> Tensor:
        """Apply norm, ReLU and dropout after this layer; nothing after the last."""
        if number == len(self.norms):
            return x
        out: Tensor = self.dropout(torch.relu(self.norms[number](x)))
        return out


def build(job: Job[Any], *, num_features: int, num_classes: int) -> Stack:
    """The job's model, the same on every rank."""
    if job.model not in MODELS:
        raise ValueError(f"model is {job.model!r}; give one of {', '.join(MODELS)}")
    if job.norm not in NORMS:
        raise ValueError(f"norm is {job.norm!r}; give one of {', '.join(NORMS)}")
    widths = widths_of(num_features, num_classes, layers=job.layers, hidden=job.hidden)
    torch.manual_seed(job.seed)
    return Stack(MODELS[job.model], widths, norm=job.norm, dropout=job.dropout, weighted=job.model == "gcn")


def is_own(name: str) -> bool:
    """Whether the name is a user's own function, as `package.module:function`."""
    return ":" in name


def build_own(job: Job[Any], *, num_features: int, num_classes: int) -> nn.Module:
    """The model that the user's function returns, called with the numbers of features and classes."""
    module, _, name = job.model.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # finds modules in the folder where the command was called
    torch.manual_seed(job.seed)
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"model {job.model!r}: {error}; give package.module:function") from None
    model = make(num_features, num_classes)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {job.model!r} returned {type(model).__name__}; return a torch.nn.Module")
    return model


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
