"""What came in, what was applied and what is remembered, parameter by parameter: ranks run this in the tests.

Weights stay as they are, so that a twin of the model, on one rank and never sent, tells what came in.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.gradients import work
from thinwire import gradients
from thinwire.gradients import progress
from thinwire.gradients.algorithms import algorithm
from thinwire.gradients.costs import DEFINED, READY
from thinwire.gradients.planning import Plan, PlannedGroup, Prediction
from thinwire.gradients.progress import Progress
from thinwire.links import Door


class Branches(nn.Module):
    """A trunk that all use; branches that some do. `inner` and `outer` of a branch lie in different groups."""

    def __init__(self, branches: int = 2) -> None:
        super().__init__()
        self.trunk = nn.Linear(24, 40)
        self.inner = nn.ModuleList(nn.Linear(40, 40) for _ in range(branches))
        self.outer = nn.ModuleList(nn.Linear(40, 40) for _ in range(branches))
        self.last = nn.Linear(40, 4)

    def forward(self, x: Tensor, used: Sequence[int]) -> Tensor:
        x = torch.relu(self.trunk(x))
        for branch in used:
            x = x + self.outer[branch](torch.tanh(self.inner[branch](x)))
        out: Tensor = self.last(x)
        return out


# The branches that a rank uses in a step; the passes of a step, of which only the last sends.
Pattern = Callable[[int, int], Sequence[int]]
PATTERNS: dict[str, Pattern] = {
    "all": lambda rank, step: (0, 1),
    "tenth": lambda rank, step: (0, 1) if step % 10 == 9 else (0,),
    "turns": lambda rank, step: (step % 2,),
    "ranks": lambda rank, step: (rank % 2,),
    "one rank": lambda rank, step: (0, 1) if rank == 0 and step % 3 == 1 else (0,),
    "never": lambda rank, step: (0,),
    "drawn": lambda rank, step: [branch for branch in (0, 1) if torch.rand(1, generator=_seeded(rank, step)) < 0.3],
}


@dataclass
class Ledger:
    """Sums over steps by parameter; `came` and `remembered` are means over ranks. With DGC's own momentum what came in
    are the steps of SGD with momentum, of which each gradient is a part.
    """

    came: dict[str, Tensor]
    applied: dict[str, Tensor]
    remembered: dict[str, Tensor]
    untouched: list[bool] = field(default_factory=list)  # was a gradient None just where DDP's was

    def missing(self) -> float:
        """The worst parameter's: how much of what came in is neither applied nor remembered."""
        return max(
            float((self.applied[name] + self.remembered[name] - came).norm() / came.norm().clamp(min=1e-3))
            for name, came in self.came.items()
        )


def plan_of(model: nn.Module, codec: str, world_size: int, *, primitive: str, any_unused: bool) -> Plan:
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    names = list(sizes)[::-1]
    if not any_unused:
        names = _ready(model)
    groups = [names[:3], names[3:7], names[7:]]
    primitive = primitive or algorithm(codec).primitives[0]
    planned = tuple(PlannedGroup(tuple(group_names), codec, primitive, 0) for group_names in groups)
    return Plan(world_size, sizes, planned, DEFINED if any_unused else READY)


def kept(
    codec: str,
    primitive: str,
    pattern: str,
    steps: int,
    options: dict[str, Any],
) -> Ledger:
    """Train, changing nothing, and keep the books. Options: `accumulate` passes under no_sync before each that sends,
    `sends` passes that send before gradients are cleared, `to_none`, `view`, `groups` of ranks, `mesh`.
    """
    group, _ = _group(options)
    over = group.get_group() if options.get("mesh") else group
    with Door(group=over) as door:
        return _kept(door, codec, primitive, pattern, steps, options, group)


def _kept(
    door: Door, codec: str, primitive: str, pattern: str, steps: int, options: dict[str, Any], group: Any
) -> Ledger:
    accumulate, sends = options.get("accumulate", 0), options.get("sends", 1)
    torch.manual_seed(0)
    model = Branches()
    any_unused = pattern != "all"
    plan = plan_of(model, codec, door.world_size, primitive=primitive, any_unused=any_unused)
    chosen = {"device_mesh": group} if options.get("mesh") else {"process_group": group}
    wrapped = gradients.wrap(model, plan, door, gradient_as_bucket_view=options.get("view", True), **chosen)
    plain = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=any_unused, process_group=door.group)
    twin = copy.deepcopy(model)
    ledger = Ledger(_zeros(model), _zeros(model), _zeros(model))
    rank = door.ranks[door.rank]
    velocity, momentum = _zeros(model), plan.momentum if algorithm(codec).has_momentum else 0.0
    for step in range(steps):
        used = PATTERNS[pattern](rank, step)
        for model_there in (wrapped, plain):
            model_there.zero_grad(set_to_none=options.get("to_none", True))
        for number in range(sends):
            for quiet in [True] * accumulate + [False]:
                x, y = work.batch(rank, 100 * step + 10 * number + quiet)
                for model_there in (wrapped, plain):
                    with model_there.no_sync() if quiet else nullcontext():
                        nn.functional.cross_entropy(model_there(x, used), y).backward()
                nn.functional.cross_entropy(twin(x, used), y).backward()
        for (name, parameter), twins in zip(model.named_parameters(), twin.parameters(), strict=True):
            came = twins.grad if twins.grad is not None else torch.zeros_like(twins)
            if parameter.grad is not None:  # else SGD passes over it, momentum and all
                ledger.applied[name] += parameter.grad
                velocity[name] = momentum * velocity[name] + came
                came = velocity[name]
            ledger.came[name] += came
        twin.zero_grad()
        ledger.untouched.append(
            [parameter.grad is None for parameter in model.parameters()]
            == [parameter.grad is None for parameter in plain.parameters()]
        )
    remember(ledger, gradients.hook_of(wrapped))
    for book in (ledger.came, ledger.remembered):
        for name in book:
            book[name] = door.gather(book[name], channel="test").mean(0)
    return ledger


def remember(ledger: Ledger, hook: gradients.Hook) -> None:
    """Of this rank, with what it owes of its slice."""
    for key, tensor in hook.state_dict().items():
        what, _, name = key.partition("/")
        if what in ("residual", "owed"):
            ledger.remembered[name] += tensor.view_as(ledger.remembered[name])


def every_kept(cases: Sequence[tuple[str, str, str, int, dict[str, Any]]]) -> list[Ledger]:
    """Several books, one after the other, all ranks together: they are started once."""
    with Door() as door:
        return [_kept(door, *case, None) for case in cases]


def in_groups(cases: Sequence[tuple[str, str]], options: dict[str, Any]) -> tuple["BesideDDP", list[Ledger]]:
    """Groups side by side: what `beside_ddp` says, and books."""
    with_ddp = beside_ddp(options, 4)
    return with_ddp, [kept(*case, "drawn", 12, options) for case in cases]


class BesideDDP(NamedTuple):
    """Weights after training by `none` and by plain DDP over the same group; their distance to the world's first."""

    ours: list[Tensor]
    plain: list[Tensor]
    apart: float


def beside_ddp(options: dict[str, Any], steps: int) -> BesideDDP:
    group, group_ranks = _group(options)
    chosen: dict[str, Any] = {"device_mesh": group} if options.get("mesh") else {"process_group": group}
    weights = []
    for kind in ("none", "ddp"):
        torch.manual_seed(dist.get_rank())  # the group's first rank tells the others its weights
        model = work.Net()
        if kind == "none":
            plan = work.plan_by_hand(model, "none", len(group_ranks))
            wrapped = gradients.wrap(model, plan, **chosen)
            assert gradients.hook_of(wrapped).door.ranks == tuple(group_ranks)
        else:
            wrapped = DistributedDataParallel(model, **chosen)
        work.trained(wrapped, steps, dist.get_rank())
        if kind == "none":
            gradients.hook_of(wrapped).door.close()
        weights.append(work.weights(model))
    first = torch.cat([weight.flatten() for weight in weights[0]])
    worlds = first.clone()
    dist.broadcast(worlds, 0)
    return BesideDDP(weights[0], weights[1], float((first - worlds).norm()))


def _group(options: dict[str, Any]) -> tuple[Any, list[int]]:
    ranks: list[list[int]] = options.get("groups") or [list(range(dist.get_world_size()))]
    [mine] = [group_ranks for group_ranks in ranks if dist.get_rank() in group_ranks]
    if options.get("mesh"):  # pairs of neighbours along "replicate", or of those further apart
        names = ("other", "replicate") if ranks[0][1] == 1 else ("replicate", "other")
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)["replicate"], mine
    if not options.get("groups"):
        return None, mine
    made = [dist.new_group(group_ranks) for group_ranks in ranks]
    return made[ranks.index(mine)], mine


def _ready(model: nn.Module) -> list[str]:
    ready: list[str] = []
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
        for name, parameter in model.named_parameters()
    ]
    x, y = work.batch(0, 0)
    nn.functional.cross_entropy(model(x, (0, 1)), y).backward()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    return ready


def _zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}


def _seeded(rank: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(97 * step + rank)


class Uneven(NamedTuple):
    """Books of the rank that goes on longest; weights by `none` and by DDP."""

    books: list[Ledger]
    ours: list[Tensor]
    plain: list[Tensor]


def uneven(cases: Sequence[tuple[str, str]], batches: Sequence[int]) -> Uneven:
    """Under `join`, a rank with so many batches."""
    ledgers, trained = [], []
    longest = batches.index(max(batches))
    with Door() as door:
        for codec, primitive in cases:
            model = work.built()
            wrapped = gradients.wrap(model, work.plan_by_hand(model, codec, door.world_size, primitive=primitive), door)
            twin = work.built()
            books = Ledger(_zeros(model), _zeros(model), _zeros(model))
            with wrapped.join():
                for step in range(batches[door.rank]):
                    wrapped.zero_grad()
                    for trained_here in (wrapped, twin):
                        work.loss_of(trained_here, work.batch(door.rank, step)).backward()
                    for name, parameter in model.named_parameters():
                        assert parameter.grad is not None
                        books.applied[name] += parameter.grad
            for name, parameter in twin.named_parameters():
                if parameter.grad is not None:
                    books.came[name] += parameter.grad
            remember(books, gradients.hook_of(wrapped))
            for name in books.came:
                books.came[name] = door.gather(books.came[name], channel="test").mean(0)
                books.remembered[name] = door.gather(books.remembered[name], channel="test").mean(0)
                books.applied[name] = door.gather(books.applied[name], channel="test")[longest]
            ledgers.append(books)
        for kind in ("none", "ddp"):
            model = work.built()
            plain = DistributedDataParallel(model)
            other = gradients.wrap(work.built(), work.plan_by_hand(model, "none", door.world_size), door)
            chosen = plain if kind == "ddp" else other
            with chosen.join():
                work.trained(chosen, batches[door.rank], door.rank)
            trained.append(work.weights(chosen))
    return Uneven(ledgers, trained[0], trained[1])


def refused() -> dict[str, str]:
    """What is said, by what was asked."""
    model = work.built()
    plan = work.plan_by_hand(model, "sign", dist.get_world_size())
    pair = work.plan_by_hand(model, "sign", 2)
    mine = dist.new_group([0, 1])
    said: dict[str, str] = {}

    def ask(what: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except ValueError as error:
            said[what] = str(error)

    with Door() as door:
        if door.rank in (0, 1):
            with Door(group=mine) as near:
                ask("door of a group", lambda: gradients.wrap(model, plan, near))
                ask("door of all", lambda: gradients.wrap(model, pair, door, process_group=mine))
                ask("plan of all", lambda: gradients.wrap(model, plan, near, process_group=mine))
                mesh: Any = object()
                ask("both", lambda: gradients.wrap(model, pair, near, process_group=mine, device_mesh=mesh))
        else:
            ask("not in it", lambda: gradients.wrap(model, pair, process_group=mine))
        grid = init_device_mesh("cpu", (1, 3), mesh_dim_names=("replicate", "shard"))
        ask("mesh", lambda: gradients.wrap(model, plan, door, device_mesh=grid))
        ask("unused", lambda: gradients.wrap(model, plan, door, find_unused_parameters=True))
        unlike = work.plan_by_hand(model, "sign" if door.rank else "ternary", door.world_size)
        ask("another plan", lambda: gradients.wrap(model, unlike, door))
        wrapped = gradients.wrap(model, plan, door, find_unused_parameters=False)
        ask("effective size", lambda: wrapped.join(divide_by_initial_world_size=False))
        branches = Branches()
        any_unused = plan_of(branches, "sign", door.world_size, primitive="", any_unused=True)
        wrapped = gradients.wrap(branches, any_unused, door, find_unused_parameters=True)
        ask("join of unused", lambda: wrapped.join())
    return said


@dataclass
class Fallen:
    """A run whose plan `auto` has made, as it were, by a codec that falls back."""

    books: Ledger
    progress: list[Progress]
    spec: str | None
    at: list[int]  # steps after which the hook went by something else
    said: list[str]
    off: list[float]  # how far each step's gradients are from plain DDP's
    shares: list[float]  # as the true sums over all values say


def fallen(codec: str, primitive: str, window: int, steps: int, rivals: dict[str, float], skip: bool = False) -> Fallen:
    """`skip`: a branch is used now and then. One rank's gradient is infinite in the step after it falls back. The loss
    is scaled.
    """
    progress.SHARE = 10.0  # so small a model would be measured once in hundreds of steps
    torch.manual_seed(0)
    model = Branches()
    plan = plan_of(model, codec, dist.get_world_size(), primitive=primitive, any_unused=skip)
    plan = replace(plan, predicted=Prediction(1.0, 0.5), rivals=rivals)
    twin = copy.deepcopy(model)
    outcome = Fallen(Ledger(_zeros(model), _zeros(model), _zeros(model)), [], None, [], [], [], [])
    with Door() as door, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scaler = work.Scaler()
        wrapped = gradients.wrap(model, plan, door, progress_every=window, scaler=scaler)
        plain = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=skip)
        hook = gradients.hook_of(wrapped)
        poisoned = False
        sums = torch.zeros(2, sum(parameter.numel() for parameter in model.parameters()))
        for step in range(steps):
            used = (0, 1) if not skip or step % 4 == 3 else (0,)
            x, y = work.batch(door.rank, step)
            before = hook.fell_back
            poison = before is not None and not poisoned
            for model_there in (wrapped, plain, twin):
                model_there.zero_grad()
                loss = nn.functional.cross_entropy(model_there(x, used), y)
                loss = loss * scaler.scale if model_there is wrapped else loss
                (loss * torch.inf if poison and model_there is wrapped and door.rank else loss).backward()
            if hook.fell_back != before:
                outcome.at.append(step)
            if poison:
                poisoned = True
                assert all(
                    bool(parameter.grad.isnan().all()) for parameter in model.parameters() if parameter.grad is not None
                )
                continue
            away, size = 0.0, 0.0
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(scaler.scale)
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    outcome.books.applied[name] += parameter.grad
            for name, parameter in twin.named_parameters():
                if parameter.grad is not None:
                    outcome.books.came[name] += parameter.grad
            for ours, ddps in zip(model.parameters(), plain.parameters(), strict=True):
                assert (ours.grad is None) == (ddps.grad is None)
                if ours.grad is not None and ddps.grad is not None:
                    away, size = away + float((ours.grad - ddps.grad).norm()), size + float(ddps.grad.norm())
            outcome.off.append(away / size)
            if step:  # the first is sent as it is; the next opens the window
                sums += torch.stack([_flat(plain), _flat(model)]) if step > 1 else 0.0
            if len(hook.progress) > len(outcome.shares):
                outcome.shares.append(1 - float((sums[1] - sums[0]).norm() ** 2 / sums[0].norm() ** 2))
                sums.zero_()
        remember(outcome.books, hook)
        for name in outcome.books.came:
            outcome.books.came[name] = door.gather(outcome.books.came[name], channel="test").mean(0)
            outcome.books.remembered[name] = door.gather(outcome.books.remembered[name], channel="test").mean(0)
        outcome.progress, outcome.spec = hook.progress, hook.fell_back
        outcome.said = [str(warning.message) for warning in said if "falls back" in str(warning.message)]
    return outcome


class ProgressBytes(NamedTuple):
    """What measuring has sent in two windows, and all; and how many values were drawn."""

    measuring: int
    everything: int
    num_drawn: int


def progress_bytes(codec: str, window: int) -> ProgressBytes:
    with Door() as door:
        model = nn.Sequential(nn.Linear(24, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 4))
        wrapped = gradients.wrap(model, work.plan_by_hand(model, codec, 2), door, progress_every=window)
        work.trained(wrapped, 2, door.rank)
        hook = gradients.hook_of(wrapped)
        door.books.take()
        assert hook._watch is not None
        work.trained(wrapped, 2 * hook._watch.steps, door.rank)
        books = {channel: sum(book.bytes_to.values()) for channel, book in door.books.take().items()}
        num_drawn = sum(map(len, hook._watch._places.values()))
        return ProgressBytes(books["gradients.progress"], sum(books.values()), num_drawn)


def _flat(model: nn.Module) -> Tensor:
    return torch.cat(
        [
            (parameter if parameter.grad is None else parameter.grad).detach().flatten()
            for parameter in model.parameters()
        ]
    )
