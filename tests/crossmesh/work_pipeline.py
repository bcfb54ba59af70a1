"""What ranks run in the tests of pipelines: models cut into stages, beside the same model in one piece."""

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from thinwire.crossmesh.network import Network
from thinwire.crossmesh.pipelines import edges, schedule, torch_schedules
from thinwire.crossmesh.pipelines.crossing import Crossing
from thinwire.crossmesh.pipelines.edges import Edge, Kind, StageRanks
from thinwire.crossmesh.pipelines.profiling import profile
from thinwire.crossmesh.pipelines.run import Pipeline
from thinwire.crossmesh.pipelines.schedule import Action, Schedule
from thinwire.crossmesh.pipelines.simulator import Costs, chain, simulate
from thinwire.links import Door, PeerLost

WIDTH, CLASSES = 16, 5
SKIPS = (*edges.chain(4), Edge("skip03", 0, 3), Edge("skip12", 1, 2))


class Block(nn.Module):
    """Attention and a perceptron: what split backward has to cope with."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.mix(seen)
        out: Tensor = x + self.scale * self.down(nn.functional.gelu(self.up(x)))
        return out


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(11, WIDTH), Block()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(self.embedding(x))
        return out


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(x).mean(dim=1))
        return out


class Down(First):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        made = super().forward(x)
        return {"h1": made, "skip03": made * 2}


class Lower(Block):
    def forward(self, h1: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        made = super().forward(h1)
        # A view, and one that is not contiguous.
        return {"h2": made.transpose(0, 1).contiguous().transpose(0, 1), "skip12": made[:, :, : WIDTH // 2]}


class Raise(Block):
    def forward(self, h2: Tensor, skip12: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(h2 + torch.cat([skip12, skip12], dim=2))


class Up(Last):
    def forward(self, h3: Tensor, skip03: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(h3 + skip03)


def plain_stages(n: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [First(), *[Block() for _ in range(n - 2)], Last()]


def unet_stages() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Down(), Lower(), Raise(), Up()]


def unet(stages: Sequence[nn.Module], x: Tensor) -> Tensor:
    """All four in one process."""
    down, lower, upper, up = stages
    first = down(x)
    second = lower(first["h1"])
    out: Tensor = up(upper(second["h2"], second["skip12"]), first["skip03"])
    return out


def batch(rows: int, step: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randint(0, 11, (rows, 6), generator=generator),
        torch.randint(0, CLASSES, (rows,), generator=generator),
    )


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters() if parameter.grad is not None}


def whole(kind: str, rows: int, n: int = 4) -> tuple[float, list[dict[str, Tensor]]]:
    """Loss and gradients by stage of the model in one piece, on the whole batch."""
    stages = unet_stages() if kind == "unet" else plain_stages(n)
    x, y = batch(rows)
    out = unet(stages, x) if kind == "unet" else nn.Sequential(*stages)(x)
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    return loss.item(), [gradients(stage) for stage in stages]


@dataclass(frozen=True)
class Case:
    """A schedule, and whether its sends wait until they are received."""

    schedule: Schedule
    blocking: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a rank's stage did: losses by step, gradients of the last one, bytes by channel."""

    stage: int
    losses: list[float | None]
    gradients: dict[str, Tensor]
    peak_activations: int
    bytes_sent: dict[str, int]


def run(
    kind: str,
    ranks: Sequence[StageRanks | Sequence[int]],
    cases: Mapping[str, Case],
    rows: int,
    steps: int,
) -> dict[str, Outcome]:
    """By case: what came of some steps."""
    outcomes = {}
    with Door(limit_s=20) as door:
        for name, case in cases.items():
            stages = unet_stages() if kind == "unet" else plain_stages(len(ranks))
            mine = next(number for number, stage in enumerate(ranks) if door.rank in _numbers(stage))
            with Pipeline(
                stages[mine],
                ranks,
                case.schedule,
                door,
                loss=nn.functional.cross_entropy,
                edges=SKIPS if kind == "unet" else None,
                blocking=case.blocking,
            ) as pipe:
                door.books.take()
                losses = []
                for _ in range(steps):
                    stages[mine].zero_grad()
                    x, y = batch(rows)
                    last = mine == len(ranks) - 1
                    loss = pipe.step(x if mine == 0 else None, y if last else None)
                    losses.append(None if loss is None else loss.item())
                sent = {channel: book.bytes_sent for channel, book in door.books.take().items()}
                outcomes[name] = Outcome(mine, losses, gradients(stages[mine]), pipe.peak_activations, sent)
    return outcomes


def any_schedule(n: int, m: int, seed: int) -> Schedule:
    """One of all that can run: ready actions at random, micro-batches in any order, W anywhere behind its I."""
    chance = random.Random(seed)
    actions: list[list[Action]] = [[] for _ in range(n)]
    halves = [chance.random() < 0.5 for _ in range(n)]
    waiting = {(stage, number, "F") for stage in range(n) for number in range(m)}
    done: set[tuple[int, int, str]] = set()
    while waiting:
        ready = [
            (stage, number, kind)
            for stage, number, kind in sorted(waiting)
            if kind == "W"
            or (kind == "F" and (stage == 0 or (stage - 1, number, "F") in done))
            or (kind in "BI" and (stage == n - 1 or {(stage + 1, number, "B"), (stage + 1, number, "I")} & done))
        ]
        stage, number, kind = chance.choice(ready)
        waiting.remove((stage, number, kind))
        done.add((stage, number, kind))
        actions[stage].append(Action(kind, number))
        if kind == "F":
            waiting.add((stage, number, "I" if halves[stage] and stage else "B"))
        elif kind == "I":
            waiting.add((stage, number, "W"))
    return Schedule(tuple(map(tuple, actions)))


def _numbers(stage: StageRanks | Sequence[int]) -> Sequence[int]:
    return stage.ranks if isinstance(stage, StageRanks) else stage


class Head(nn.Module):
    """Its weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 11, bias=False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x.mean(dim=1))
        return out


def tied() -> list[tuple[Tensor, Tensor]]:
    """Two steps without zero_grad, an embedding that is the head as well, two ranks at the head's stage."""
    torch.manual_seed(0)
    first, last = First(), Head()
    last.out.weight.data.copy_(first.embedding.weight.data)
    x, _ = batch(12)
    y = batch(12, 1)[0][:, 0]
    for _ in range(2):
        made = first(x).mean(dim=1) @ first.embedding.weight.T
        nn.functional.cross_entropy(made, y).backward()
    expected = [_gradient(weight) for weight in (first.embedding.weight, first.block.up.weight)]
    first.zero_grad()
    mine: nn.Module = last if dist.get_rank() else first
    with Door(limit_s=20) as door:
        chosen = schedule.split(schedule.one_f_one_b(2, 3))
        tie = [{0: "embedding.weight", 1: "out.weight"}]
        with Pipeline(mine, [(0,), (1, 2)], chosen, door, loss=nn.functional.cross_entropy, tied=tie) as pipe:
            for _ in range(2):
                pipe.step(x if door.rank == 0 else None, y if door.rank else None)
    assert last.unused.weight.grad is None
    weights = [last.out.weight] if dist.get_rank() else [first.embedding.weight, first.block.up.weight]
    return [(_gradient(weight), one) for weight, one in zip(weights, expected, strict=False)]


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def other_size() -> str:
    stages = [First(), Last()]
    with Door(limit_s=20) as door:
        chosen = schedule.one_f_one_b(2, 2)
        with Pipeline(stages[door.rank], [(0,), (1,)], chosen, door, loss=nn.functional.cross_entropy) as pipe:
            for rows in (8, 8, 6):
                if rows == 6:
                    pipe.relearn()
                x, y = batch(rows)
                pipe.step(x if door.rank == 0 else None, y if door.rank else None)
            if door.rank == 0:
                try:
                    pipe.step(batch(10)[0])
                except ValueError as error:
                    return "ok" if "call relearn() on all ranks" in str(error) else str(error)
                return "was not refused"
    return "ok"


def lose_a_rank(folder: str) -> None:
    """The limit is longer than the test may last: who is told is told because rank 1 is dead."""
    stages = plain_stages(3)
    with Door(limit_s=600) as door:
        chosen = schedule.eager_1f1b(3, 4)
        pipe = Pipeline(stages[door.rank], [(0,), (1,), (2,)], chosen, door, loss=nn.functional.cross_entropy)
        x, y = batch(8)
        try:
            for step in range(100):
                if door.rank == 1 and step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                door.step = step
                pipe.step(x if dist.get_rank() == 0 else None, y if dist.get_rank() == 2 else None)
        except PeerLost as error:
            (Path(folder) / str(dist.get_rank())).write_text(str(error))
            raise


def paced() -> tuple[float, float]:
    """Measured and simulated seconds of a step whose compute and transfers are tiny beside its pace."""
    stages = [First(), Last()]
    pace = {"F": 0.02, "B": 0.04, "I": 0.02, "W": 0.02}
    chosen = schedule.split(schedule.eager_1f1b(2, 6))
    with (
        Door(limit_s=20) as door,
        Pipeline(stages[door.rank], [(0,), (1,)], chosen, door, loss=nn.functional.cross_entropy, least_s=pace) as pipe,
    ):
        x, y = batch(12)
        for _ in range(3):
            door.barrier(channel="start")
            begun_s = time.perf_counter()
            pipe.step(x if door.rank == 0 else None, y if door.rank else None)
            seconds = time.perf_counter() - begun_s
    return seconds, simulate(chosen, chain(2, forward_s=0.02, backward_s=0.04, transfer_s=0)).seconds


def by_torch(schedules: Mapping[str, Schedule], rows: int) -> dict[str, dict[str, Tensor]]:
    gradients_by_schedule = {}
    x, y = batch(rows)
    for name, chosen in schedules.items():
        mine = plain_stages(4)[dist.get_rank()]
        stage = PipelineStage(mine, dist.get_rank(), 4, torch.device("cpu"))
        runtime = torch_schedules.runtime(chosen, stage, nn.functional.cross_entropy)
        runtime.step(*([x] if dist.get_rank() == 0 else []), target=y if dist.get_rank() == 3 else None)
        gradients_by_schedule[name] = gradients(mine)
    return gradients_by_schedule


class Profiled(NamedTuple):
    costs: Costs
    activation_bytes: int | None


def profiled() -> Profiled:
    """Costs as this rank knows them, of stages of one, two and one ranks, and what its own stage keeps in the end."""
    mine = {0: 0, 1: 1, 2: 1, 3: 2}[dist.get_rank()]
    pace = {"F": 0.02, "B": 0.05, "I": 0.03, "W": 0.02}
    x, y = batch(12)
    with Door(limit_s=20) as door:
        plans = [schedule.one_f_one_b(3, 3), schedule.split(schedule.one_f_one_b(3, 3))]
        pipes = []
        for plan in plans:
            stage = plain_stages(3)[mine]
            loss = nn.functional.cross_entropy
            pipes.append(Pipeline(stage, [(0,), (1, 2), (3,)], plan, door, loss=loss, least_s=pace))
            for _ in range(2):
                pipes[-1].step(x if mine == 0 else None, y if mine == 2 else None)
        costs = profile(pipes, door, hosts=(0, 1, 2))
        for pipe in pipes:
            pipe.close()
    return Profiled(costs, pipes[0].activation_bytes)


def receipts(late_s: float) -> dict[bool, float]:
    """Seconds that the first rank waits for what it sends, without receipts and with them, which come late."""
    taken: dict[bool, float] = {}
    with Door(limit_s=20) as door:
        send = door.send

        def late(data: Tensor, peer: int, *, channel: str) -> Any:
            if channel.endswith("arrived"):
                time.sleep(late_s)
            return send(data, peer, channel=channel)

        door.send = late  # type: ignore[method-assign]
        kind = Kind((4,), torch.float32, False, 4)
        for wanted in (False, True):
            ends = StageRanks((0,)), StageRanks((1,))
            crossing = Crossing(Edge("h", 0, 1), f"h{wanted}", *ends, Network.even([0, 1]), door, receipts=wanted)
            start = time.perf_counter()
            crossing.forward(kind, torch.ones(4) if door.rank == 0 else None).wait()
            taken[wanted] = time.perf_counter() - start
    return taken
