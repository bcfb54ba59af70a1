"""Your own model under FSDP2, gradients and weights in a few bits: python examples/own_fsdp.py"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire
from thinwire.gradients import fsdp

WORKERS, STEPS = 2, 60


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)
    )


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Is the sum of the first four features positive?"""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, (x[:, :4].sum(dim=1, keepdim=True) > 0).float()


def train() -> tuple[float, float, dict[str, int]]:
    with thinwire.init() as door:
        model = build()
        mesh = init_device_mesh("cpu", (door.world_size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        fsdp.compress(model, "uniform:8", door, parameters="uniform:4")  # the one line more
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        losses = []
        for step in range(STEPS):
            x, y = batch_of(door.rank, step)
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        books = door.books.take()
        sent = {
            what: sum(book.bytes_sent for name, book in books.items() if name.startswith(f"{what}.fsdp."))
            for what in ("gradients", "parameters")
        }
        return losses[0], sum(losses[-5:]) / 5, sent


if __name__ == "__main__":
    first, last, sent = thinwire.launch.run(train, workers=WORKERS)[0]
    values = sum(weight.numel() for weight in build().parameters())
    float32_bytes = STEPS * 4 * values * (WORKERS - 1) / WORKERS
    print(f"loss {first:.3f}, after {STEPS} steps: {last:.3f}")
    for what, size in sent.items():
        print(f"{what}: {float32_bytes / size:.1f} times fewer bytes than one float32 exchange a step")
