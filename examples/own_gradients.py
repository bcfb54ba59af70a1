"""A model and a loop of one's own with compressed gradients: examples/own_gradients.py, or under torchrun."""

import torch
from torch import nn

import thinwire
from thinwire import gradients, launch


def batch_of(rank: int, step: int):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(64, 32, generator=generator)
    return x, (x[:, :4].sum(dim=1) > 0).long()


def loss_fn(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def train() -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    with thinwire.init() as door:
        profile = gradients.profile(model, batch_of(door.rank, 0), loss_fn, door, codecs=["topk:0.01"])
        plan = gradients.plan(profile, codec="topk:0.01")
        model = gradients.wrap(model, plan, door)  # a DistributedDataParallel: the loop below is as it was
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(60):
            optimizer.zero_grad()
            loss = loss_fn(model, batch_of(door.rank, step))
            loss.backward()
            optimizer.step()
        if door.rank == 0:
            sizes = [f"{len(group.names)} tensors in {group.nbytes:,} bytes" for group in plan.groups]
            print(f"groups: {'; '.join(sizes)}")
    return loss.item()


if __name__ == "__main__":
    losses = launch.run(train, workers=2)
    print(f"loss after 60 steps: {losses[0]:.3f}")
