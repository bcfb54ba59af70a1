"""What ranks run: a model of PyG layers, trained on shards; importable, since ranks are spawned."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv

from thinwire import graphs
from thinwire.codecs import Identity
from thinwire.fullgraph import Plan, distribute
from thinwire.fullgraph.halo import Wire
from thinwire.launch import Member
from thinwire.links import Door

LR = {"sage": 0.1, "gcn": 0.1, "gin": 0.001, "graph": 1e-5}


class Net(nn.Module):
    """Three layers of one kind, made anew from a seed."""

    def __init__(self, kind: str, widths: list[int]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.convs = nn.ModuleList([layer(kind, a, b) for a, b in pairwise(widths)])

    def forward(self, x: Tensor, edges: Tensor | None = None, *more: Tensor | None) -> Tensor:
        for place, conv in enumerate(self.convs):
            x = conv(x, edges, *more)
            if place + 1 < len(self.convs):
                x = torch.relu(x)
        return x


def layer(kind: str, a: int, b: int) -> nn.Module:
    if kind == "gin":
        return GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)), train_eps=True)
    return {"sage": SAGEConv, "gcn": GCNConv, "graph": GraphConv}[kind](a, b)


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    used: Tensor,
    num_train: int,
    edges: tuple[Tensor | None, ...],
    epochs: int,
    lr: float,
) -> Tensor:
    # Sums over neighbours, unlike means, make large steps of small ones.
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(x, *edges)
        loss = functional.cross_entropy(out[used], y[used], reduction="sum") / num_train
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def in_one(data: str, kind: str, epochs: int, weighted: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """PyG's own layers on the whole graph."""
    graph = _graph(data, weighted)
    model = Net(kind, [graph.x.shape[1], 16, 24, graph.num_classes])
    edges: tuple[Tensor | None, ...] = (torch.from_numpy(graph.edge_index).long(),)
    if graph.edge_weight is not None and kind in ("gcn", "graph"):
        edges = (*edges, torch.from_numpy(graph.edge_weight))
    x, y = torch.from_numpy(graph.x).float(), torch.from_numpy(graph.y).long()
    used = torch.from_numpy(graph.split == 0)
    return train(model, x, y, used, int(used.sum()), edges, epochs, LR[kind]), model.state_dict()


@dataclass
class Result:
    """What a rank found."""

    losses: Tensor
    weights: dict[str, Tensor]
    messages: int  # that carried features or activations forward
    bytes_to: dict[str, int]  # by channel
    halo_rows: int
    send_rows: int
    logits: Tensor


def on_shards(
    member: Member, data: str, kind: str, epochs: int, weighted: bool, plan: Plan | None = None, lr: float = 0.0
) -> Result:
    graph = _graph(data, weighted)
    n = member.world_size
    part = np.random.default_rng(1).integers(0, n, graph.num_nodes).astype(np.int32)
    shard = list(graphs.split(graph, part, n))[member.rank]
    with Door(member.store) as door:
        model = distribute(Net(kind, [graph.x.shape[1], 16, 24, graph.num_classes]), shard, door, plan)
        used = shard.split == 0
        x = shard.x.float()
        losses = train(model, x, shard.y.long(), used, shard.num_train, (None,), epochs, lr or LR[kind])
        books = door.books.take()
        door.all_reduce(losses, channel="losses").wait()
        model.eval()
        with torch.no_grad():
            logits = model(x)
    return Result(
        losses=losses,
        weights={name.replace(".conv.", "."): value for name, value in model.state_dict().items()},
        messages=sum(book.messages_sent for name, book in books.items() if name.endswith((".forward", ".exact"))),
        bytes_to={name: book.bytes_sent for name, book in books.items()},
        halo_rows=shard.num_halo,
        send_rows=len(shard.send_rows),
        logits=logits,
    )


def stale_rows(member: Member) -> list[list[float]]:
    """Six epochs over one wire, the fourth synchronous: which epoch's rows came out."""
    with Door(member.store) as door:
        peer = 1 - member.rank
        wire = Wire(door, "test", [2 * (p == peer) for p in range(2)], [2 * (p == peer) for p in range(2)])
        seen = []
        for epoch, stale in enumerate([False, True, True, False, True, True]):
            wire.post(torch.full((2, 3), float(epoch)), Identity(), (0,))
            seen.append(wire.finish(3, stale=stale).unique().tolist())
    return seen


def _graph(data: str, weighted: bool) -> graphs.Graph:
    graph = graphs.load(data)
    if not weighted:
        return graph
    weights = np.random.default_rng(2).uniform(0.5, 2, graph.num_edges).astype(np.float32)
    return graphs.Graph(graph.edge_index, graph.x, graph.y, graph.split, edge_weight=weights)
