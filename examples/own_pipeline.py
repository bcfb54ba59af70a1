"""A model of one's own as a pipeline: stages of one, two and one ranks, a skip from the first to the last.

examples/own_pipeline.py, or under torchrun with four ranks.
"""

import torch
from torch import Tensor, nn

import thinwire
from thinwire import launch
from thinwire.crossmesh.pipelines import schedule
from thinwire.crossmesh.pipelines.edges import Edge
from thinwire.crossmesh.pipelines.run import Pipeline
from thinwire.crossmesh.pipelines.simulator import Costs, StageCost, WireCost, simulate
from thinwire.crossmesh.pipelines.timeline import Span, Timeline

RANKS = [(0,), (1, 2), (3,)]  # the middle stage has two ranks, which share each micro-batch by its rows
EDGES = [Edge("h1", 0, 1), Edge("h2", 1, 2), Edge("skip", 0, 2)]
PACE_S = {"F": 0.01, "B": 0.02, "I": 0.01, "W": 0.01}  # so that the picture shows a schedule, and not this machine


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.narrow = nn.Linear(32, 256), nn.Linear(256, 16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.relu(self.up(x))
        return {"h1": h, "skip": self.narrow(h)}  # a tensor for each edge that leads away, by name


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out, self.widen = nn.Linear(256, 2), nn.Linear(16, 256)

    def forward(self, h2: Tensor, skip: Tensor) -> Tensor:  # and one for each that leads here
        return self.out(torch.relu(h2 + self.widen(skip)))


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(128, 32, generator=torch.Generator().manual_seed(step))
    return x, (x[:, :4].sum(dim=1) > 0).long()


def train() -> tuple[list[Span], int, float | None]:
    with thinwire.init() as door:
        stage = next(number for number, ranks in enumerate(RANKS) if door.rank in ranks)
        torch.manual_seed(stage)  # ranks of one stage start from the same weights
        model = [First, lambda: nn.Sequential(nn.Linear(256, 256), nn.ReLU()), Last][stage]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        plan = schedule.split(schedule.eager_1f1b(num_stages=3, num_microbatches=8))
        loss_fn = nn.functional.cross_entropy
        with Pipeline(model, RANKS, plan, door, loss=loss_fn, edges=EDGES, least_s=PACE_S) as pipe:
            for step in range(20):
                x, y = batch_of(step)
                optimizer.zero_grad()
                loss = pipe.step(x if stage == 0 else None, y if stage == 2 else None)
                optimizer.step()
            return pipe.spans, pipe.peak_activations, None if loss is None else loss.item()


if __name__ == "__main__":
    plan = schedule.split(schedule.eager_1f1b(num_stages=3, num_microbatches=8))
    print(plan)
    stages = (StageCost(PACE_S["F"], PACE_S["B"], PACE_S["I"], PACE_S["W"]),) * 3
    wires = tuple(WireCost(edge.name, edge.source, edge.destination, 0.002, 0.002) for edge in EDGES)
    print("predicted:", simulate(plan, Costs(stages, wires, hosts=(0, 1, 2))).draw())
    results = launch.run(train, workers=4)
    if len(results) == 4:  # under torchrun each rank has its own part only
        firsts = [results[ranks[0]] for ranks in RANKS]
        spans = tuple(span for spans, _, _ in firsts for span in spans)
        print("measured: ", Timeline(spans, tuple(peak for _, peak, _ in firsts), (0, 0, 0)).draw())
        print(f"loss after 20 steps: {results[3][2]:.3f}")
