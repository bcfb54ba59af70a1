"""What ranks run: models whose weights are frozen, unfrozen, added and replaced after they were distributed."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from tests.fullgraph.work import Case, Net, load, noting_error, shard_of
from thinwire.fullgraph import distribute
from thinwire.links import Door


class Adapter(nn.Module):
    """A low-rank map beside one that is there (LoRA)."""

    def __init__(self, inner: nn.Module, a: int, b: int) -> None:
        super().__init__()
        self.inner = inner
        self.weight = inner.weight  # as peft has it
        self.bias = inner.bias
        self.down, self.up = nn.Linear(a, 2, bias=False), nn.Linear(2, b, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.up(self.down(x))
        return out


def changing(model: Net, x: Tensor, y: Tensor, used: Tensor, count: int, edges: Tensor, seed: int) -> dict[str, Any]:
    """Two steps each: with a frozen layer, without, with an adapter, with all but the adapter frozen, thawed again."""
    widths = [x.shape[1], 16, 24]

    def freeze() -> None:
        model.convs[0].requires_grad_(False)

    def thaw() -> None:
        model.requires_grad_(True)

    def adapt() -> None:
        torch.manual_seed(seed)  # ranks draw different ones
        for place in (0, 1):
            conv: Any = model.convs[place]
            name = "lin_l" if hasattr(conv, "lin_l") else "lin"
            setattr(conv, name, Adapter(getattr(conv, name), widths[place], widths[place + 1]))

    def only_adapters() -> None:
        model.requires_grad_(False)
        for module in model.modules():
            if isinstance(module, Adapter):
                module.up.requires_grad_(True)

    def replace() -> None:
        model.aside = nn.Parameter(torch.full((1,), float(seed)))
        model.register_forward_hook(lambda module, _, out: out * module.aside)

    for change in (freeze, thaw, adapt, only_adapters, thaw, replace):
        change()
        for _ in range(2):
            model.zero_grad()
            loss = functional.cross_entropy(model(x, edges)[used], y[used], reduction="sum") / count
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.grad is not None:
                        weight.sub_(0.1 * weight.grad)
    return dict(model.state_dict())


def in_one(case: Case) -> dict[str, Tensor]:
    graph = load(case)
    x, y, used = torch.from_numpy(graph.x).float(), torch.from_numpy(graph.y).long(), torch.from_numpy(graph.split == 0)
    model = Net(case, [x.shape[1], 16, 24, graph.num_classes])
    return changing(model, x, y, used, int(used.sum()), torch.from_numpy(graph.edge_index).long(), 1)


def on_shards(cases: list[Case]) -> list[dict[str, Tensor]]:
    results = []
    with Door() as door:
        for case in cases:
            shard, graph = shard_of(case, door.rank, door.world_size)
            model = distribute(Net(case, [graph.x.shape[1], 16, 24, graph.num_classes]), shard, door)
            assert isinstance(model, Net)
            used = shard.split == 0
            inputs = shard.x.float(), shard.y.long(), used, shard.num_train, shard.edge_index
            results.append(changing(model, *inputs, 1 + door.rank))
    return results


def refused(data: str) -> dict[str, str]:
    """A layer that comes too late; and weights that one rank alone thaws, of two that ask for a sum."""
    case = Case(data, "sage")
    said: dict[str, str] = {}
    with Door() as door:
        shard, graph = shard_of(case, door.rank, door.world_size)
        model: Any = distribute(Net(case, [graph.x.shape[1], 16, 24, graph.num_classes]), shard, door)
        x = shard.x.float()
        model.convs[2].requires_grad_(False)
        model.convs[door.rank].requires_grad_(False)
        with noting_error(said, "unlike"):
            model(x, shard.edge_index)
        model.requires_grad_(True)
        model.convs.append(pyg.GATConv(graph.num_classes, 4))
        with noting_error(said, "late"):
            model(x, shard.edge_index)
    return said
