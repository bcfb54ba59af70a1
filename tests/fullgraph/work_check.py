"""What ranks run: models that are checked before their first pass."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from tests.fullgraph.models import C, D, H, Sub, Wrong
from tests.fullgraph.work import Case, noting_error, shard_of
from thinwire.fullgraph import distribute
from thinwire.links import Door

DATA = f"synthetic:nodes=200,degree=6,classes={C},features={D},noise=2,directed"


@dataclass
class Found:
    """By a rank."""

    checked: Tensor
    unchecked: Tensor
    said: dict[str, str]


class Fits(nn.Module):
    """Has a row for each node of its shard: it can't be tried on another graph, and is the same in parts."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(D, C)
        self.register_buffer("more", torch.ones(rows, C))

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(x, edge_index) + self.more


class Split(Wrong):
    """Wrong on the last rank only."""

    def step(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if torch.distributed.get_rank() == 1 else x


def on_shards(data: str) -> Found:
    said: dict[str, str] = {}
    with Door() as door:
        shard, _ = shard_of(Case(data, "sage"), door.rank, door.world_size)
        x, y = shard.x.float(), shard.y.long()
        losses = [
            _losses(pyg.GCN(D, H, 2, C, norm="batch", dropout=0.5), check, shard, door, x, y) for check in (True, False)
        ]
        for name, model in {"mean": Wrong(), "one rank": Split()}.items():
            with noting_error(said, name):
                distribute(model, shard, door, check=True)(x, shard.edge_index)
        for between in (pyg.GraphNorm(H), pyg.PairNorm(), pyg.LayerNorm(H)):
            with noting_error(said, type(between).__name__):
                distribute(Wrong(between), shard, door, check=True)
        with noting_error(said, "PNA"):
            deg = torch.ones(4, dtype=torch.long)
            distribute(
                pyg.PNA(D, H, 2, C, aggregators=["mean"], scalers=["identity"], deg=deg), shard, door, check=True
            )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            distribute(Fits(shard.num_owned), shard, door, check=True)(x, shard.edge_index)
        said["warned"] = next((text for warning in warned if "tried" in (text := str(warning.message))), "").split("(")[
            0
        ]
        distribute(Wrong(Sub(lambda _, x: x - x.mean())), shard, door)(x, shard.edge_index)  # asked for nothing
    return Found(losses[0], losses[1], said)


def _losses(model: nn.Module, check: bool, shard: Any, door: Door, x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(0)
    for module in model.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    model = distribute(model, shard, door, check=check)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, shard.edge_index), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            losses.append(model(x, shard.edge_index).sum())
        model.train()
    return torch.stack(losses)
