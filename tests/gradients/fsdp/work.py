"""What ranks run in the tests of FSDP: models with branches, on meshes of every kind, beside plain FSDP2."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

# What FSDP imports when it is first used, which takes each rank seconds: once, where ranks are forked from.
PRELOAD = ("torch._dynamo", "torch._inductor.config", "torch.distributed.checkpoint")
WIDTH = 40
Pattern = Callable[[int], str]  # which branches a step uses


class Branches(nn.Module):
    """Two branches of equal size in one unit, two units used in turn, and what is always used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, WIDTH)
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, use: str = "lr12") -> Tensor:
        x = torch.tanh(self.first(x))
        for letter, branch in zip("lr12", (self.left, self.right, self.one, self.two), strict=True):
            if letter in use:
                x = x + torch.tanh(branch(x))
        out: Tensor = self.last(x + self.down(torch.tanh(self.up(x))))
        return out


def in_turn(step: int) -> str:
    return ("l1", "r2", "lr", "r12", "")[step % 5]


def everything(step: int) -> str:
    return "lr12"


def mesh_of(kind: str) -> DeviceMesh:
    """`flat` for as many ranks as there are; the others for 4."""
    if kind == "flat":
        return init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("shard",))
    names = {"hsdp": ("replicate", "shard"), "tp": ("shard", "tp")}
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names[kind])


def sharded(kind: str = "flat", *, mesh: DeviceMesh | None = None, seed: int = 0, **options: Any) -> Branches:
    torch.manual_seed(seed)
    model = Branches()
    mesh = mesh_of(kind) if mesh is None else mesh
    if kind == "tp":
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = mesh["shard"]
    for module in (model.one, model.two, model.first):
        fully_shard(module, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def batch(place: int, step: int) -> Tensor:
    """Of a data-parallel rank."""
    return torch.randn(12, 24, generator=torch.Generator().manual_seed(1000 * step + place))


def loss_of(model: nn.Module, place: int, step: int, use: str = "lr12") -> Tensor:
    out: Tensor = model(batch(place, step), use)
    return out.square().mean()


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    return {
        name: None if parameter.grad is None else local(parameter.grad).clone()
        for name, parameter in model.named_parameters()
    }


def local(x: Any) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def summed(model: nn.Module, place: int, steps: int, pattern: Pattern) -> tuple[dict[str, Tensor], list[list[str]]]:
    """All gradients of so many steps; and who had none, step by step. Weights stay as they are."""
    total = {name: torch.zeros_like(local(parameter)) for name, parameter in model.named_parameters()}
    none = []
    for step in range(steps):
        model.zero_grad()
        loss_of(model, place, step, pattern(step)).backward()
        gradients = gradients_of(model)
        none.append([name for name, gradient in gradients.items() if gradient is None])
        for name, gradient in gradients.items():
            if gradient is not None:
                total[name] += gradient
    return total, none


def owed(state: dict[str, Any], name: str, *, mean: bool = True) -> Tensor:
    """What the optimizer has yet to get of this rank's shard."""
    debt = local(state[f"owed/{name}"])
    return debt / float(state["ranks"]) if mean else debt


@torch.no_grad()
def most(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The largest distance between two of these, over the largest value."""
    size = max(float(b.abs().max()) for _, b in pairs if b.numel())
    return max(float((a - b).abs().max()) for a, b in pairs if b.numel()) / size


def books_of(door: Any) -> dict[str, int]:
    """Bytes by channel since the last time."""
    return {channel: book.bytes_sent for channel, book in door.books.take().items() if book.bytes_sent}
