"""Models that are the same in parts, PyG's own among them, and models that are not, each in a way of its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import models

D, H, C = 12, 16, 5  # features, hidden, classes
EDGE = 3


class Deep(nn.Module):
    """As PyG's example for ogbn-proteins: GENConv, res+, edge features."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(D, H)
        self.edge = nn.Linear(EDGE, H)
        self.layers = nn.ModuleList(
            [
                models.DeepGCNLayer(
                    pyg.GENConv(H, H, aggr="softmax", learn_t=True, num_layers=2, norm="layer"),
                    nn.LayerNorm(H),
                    nn.ReLU(inplace=True),
                    block="res+",
                    dropout=0.1,
                )
                for _ in range(4)
            ]
        )
        self.last = nn.Linear(H, C)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, e = self.first(x), self.edge(edge_attr)
        first: Any = self.layers[0]
        x = first.conv(x, edge_index, e)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, e)
        x = first.act(first.norm(x))
        out: Tensor = self.last(functional.dropout(x, 0.1, self.training))
        return out


class Jumping(nn.Module):
    """Jumping knowledge by an LSTM, batch norms, attention's own dropout, edge features, more arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, H)
        self.convs = nn.ModuleList([pyg.GATv2Conv(H, H // 2, 2, edge_dim=EDGE, dropout=0.6) for _ in range(2)])
        self.norms = nn.ModuleList([pyg.BatchNorm(H), nn.BatchNorm1d(H)])
        self.jump = pyg.JumpingKnowledge("lstm", H, 2)
        self.first, self.last = nn.Linear(D, H), nn.Linear(H, C)
        self.gate = nn.Parameter(torch.zeros(1))
        self.seen = 0

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, kinds: Tensor, *, scale: float = 1.0) -> Any:
        self.seen += 1
        x = self.first(x) + self.kinds(kinds)
        xs = []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.elu_(norm(conv(x, edge_index, edge_attr))) * scale + self.gate * x
            xs.append(x)
        return {"out": self.last(self.jump(xs)), "hidden": xs, "size": (self.last.weight**2).sum()}


class OwnConv(pyg.MessagePassing):  # type: ignore[misc]
    """A user's own: attention by its own softmax, and a product."""

    def __init__(self) -> None:
        super().__init__(aggr=["mean", "max"])
        self.lin = nn.Linear(2 * D, 1)
        self.out = nn.Linear(2 * D, C)

    def forward(self, x: Any, edge_index: Tensor) -> Tensor:
        pair = x if isinstance(x, tuple) else (x, x)
        out: Tensor = self.out(self.propagate(edge_index, x=pair))
        return out

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        weight = pyg.conv.gat_conv.softmax(self.lin(torch.cat((x_i, x_j), 1)), index, num_nodes=size_i)
        return weight * x_j


class Heads(nn.Module):
    """Attention among what each node itself has: rows are the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.TransformerConv(D, H, heads=2, concat=True)
        self.attention = nn.MultiheadAttention(H, 2, dropout=0.3, batch_first=True)
        self.conv2 = pyg.SAGEConv(H, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(x, edge_index).view(-1, 2, H)
        x, _ = self.attention(x, x, x)
        out: Tensor = self.conv2(x.mean(1), edge_index)
        return out


class OfData(nn.Module):
    """Takes PyG's Data, weighs edges, adds a term of rows before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(D, 24), pyg.GraphConv(24, C)
        self.skip = nn.Linear(D, C)

    def forward(self, data: Data) -> Tensor:
        x = self.conv1(data.x, data.edge_index, data.edge_weight).relu()
        out: Tensor = self.conv2(x, data.edge_index, data.edge_weight) + self.skip(data.x)
        return functional.log_softmax(out, dim=1)


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: models.GCN(D, H, 3, C, dropout=0.5, norm="batch", jk="cat"),
    "GraphSAGE": lambda: models.GraphSAGE(D, H, 3, C, dropout=0.5, norm="layer_norm", norm_kwargs={"mode": "node"}),
    "GraphSAGE lstm": lambda: models.GraphSAGE(D, H, 2, C, aggr="lstm"),
    "GAT": lambda: models.GAT(D, H, 3, C, heads=2, dropout=0.5, v2=True, jk="lstm"),
    "GIN": lambda: models.GIN(D, H, 3, C, dropout=0.5, norm="batch_norm", jk="max"),
    "EdgeCNN": lambda: models.EdgeCNN(D, H, 2, C, dropout=0.2),
    "DeepGCNLayer": Deep,
    "JumpingKnowledge": Jumping,
    "own": OwnConv,
    "heads": Heads,
    "data": OfData,
}


class Wrong(nn.Module):
    """Right, but for what happens between two layers."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv(D, H), pyg.GATConv(H, C)
        self.between = between
        self.lin = nn.Linear(H, H)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(self.conv1(x, edge_index))
        x = self.between(x) if self.between is not None else self.step(x)
        out: Tensor = self.conv2(x.relu(), edge_index)
        return out

    def step(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(H, 2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x)[0]
        return out


class Scaled(nn.Module):
    """LayerScale: what attention adds is almost nothing at first."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.attention = Attends()
        self.scale = nn.Parameter(torch.full((H,), scale))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.scale * self.attention(x)
        return out


class Sub(nn.Module):
    """What is done is given as a function."""

    def __init__(self, do: Callable[["Sub", Tensor], Tensor]) -> None:
        super().__init__()
        self.do = do
        self.gate = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.zeros(H))
        self.before: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.do(self, x)


def pair(self: Sub, x: Tensor) -> Tensor:
    x = x - x.mean(0)
    return x / (1e-5 + x.pow(2).sum(-1).mean()).sqrt()


def remembers(self: Sub, x: Tensor) -> Tensor:
    before, self.before = self.before, x.detach().mean(0)
    return x if before is None else x - before


def runs_along(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.mean.lerp_(x.detach().mean(0), 0.1)
    return x


class Reverses(torch.autograd.Function):
    """Forward nothing; backward gradients less their mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] - grads[0].mean(0)


# What is wrong, and what the refusal says of the place.
WRONG: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mean": (Wrong, "the forward of Wrong itself, after 'lin' and before 'conv2'"),
    "attention": (lambda: Wrong(Attends()), "between.attention (MultiheadAttention) gives other rows"),
    "layer norm": (lambda: Wrong(Sub(pair)), "between (Sub) gives other rows"),
    "softmax": (lambda: Wrong(nn.Softmax(0)), "between (Softmax) gives other rows"),
    "sort": (lambda: Wrong(Sub(lambda _, x: x.sort(0).values)), "between (Sub) gives other rows"),
    "pooling": (lambda: Wrong(Sub(lambda _, x: x + pyg.global_max_pool(x, None))), "between (Sub) gives other rows"),
    "closed gate": (lambda: Wrong(Sub(lambda m, x: x + m.gate * x.mean(0))), "between (Sub) gives other rows"),
    "gate almost closed": (lambda: Wrong(Scaled(1e-5)), "between.attention.attention (MultiheadAttention) gives"),
    "state": (lambda: Wrong(Sub(remembers)), "between (Sub) gives other rows"),
    "statistics": (lambda: Wrong(Sub(runs_along)), "its buffer between.mean"),
    "noise": (lambda: Wrong(Sub(lambda _, x: x + torch.randn_like(x))), "draws random numbers of its own"),
    "depth": (lambda: Wrong(Sub(lambda _, x: x * torch.rand(()))), "draws random numbers of its own"),
    "gradient": (lambda: Wrong(Sub(lambda _, x: Reverses.apply(x))), "the gradient of"),  # type: ignore[no-untyped-call]
    "rows": (lambda: Wrong(Sub(lambda _, x: x + x[:12].sum(0))), "between (Sub) gives other rows"),
    "top": (lambda: Wrong(Sub(lambda _, x: x + x.topk(12, 0).values.mean(0))), "on a part: RuntimeError"),
}


def make(num_features: int, num_classes: int) -> nn.Module:
    """For `thinwire train --model`."""
    assert (num_features, num_classes) == (D, C)
    return models.GraphSAGE(D, H, 2, C)


def make_wrong(num_features: int, num_classes: int) -> nn.Module:
    return Wrong()
