"""What ranks run in the tests of gradients; and plans made by hand."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import gradients
from thinwire.gradients.algorithms import algorithm
from thinwire.gradients.coded import Coded
from thinwire.gradients.costs import DEFINED, READY
from thinwire.gradients.planning import Plan, PlannedGroup
from thinwire.gradients.primitives import make_group
from thinwire.links import Door


class Net(nn.Module):
    """Wide enough to be compressed, with small tensors between; `odd` adds one without values, one with one."""

    def __init__(self, *, odd: bool = False, unused: bool = False, shared: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(24, 48)
        self.norm = nn.LayerNorm(48)
        self.second = nn.Linear(48, 48)
        self.third = self.second if shared else nn.Linear(48, 48)
        self.last = nn.Linear(48, 4)
        self.scale = nn.Parameter(torch.ones(1)) if odd else None
        self.nothing = nn.Parameter(torch.ones(0)) if odd else None
        self.unused = nn.Linear(30, 30) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.third(torch.relu(self.second(x))))
        if self.scale is not None and self.nothing is not None:
            x = x * self.scale + self.nothing.sum()
        out: Tensor = self.last(x)
        return out


def built(**options: bool) -> Net:
    torch.manual_seed(0)
    return Net(**options)


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Something that can be learnt: which quarter of the features adds up to most."""
    x = torch.randn(16, 24, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x.view(16, 4, 6).sum(dim=2).argmax(dim=1)


def loss_of(model: nn.Module, examples: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(examples[0]), examples[1])


def ready_names(model: nn.Module, *, autocast: bool = False) -> list[str]:
    """In the order in which gradients become ready; those that don't are left out."""
    ready: list[str] = []
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss_of(model, batch(0, 0)).backward()
    model.zero_grad()
    for handle in handles:
        handle.remove()
    return ready


def plan_by_hand(
    model: nn.Module,
    codec: str,
    world_size: int,
    *,
    primitive: str = "",
    cuts: Sequence[int] = (3, 7),
    autocast: bool = False,
    **more: Any,
) -> Plan:
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = ready_names(model, autocast=autocast)
    order = READY if len(names) == len(sizes) else DEFINED
    names = names if order == READY else list(sizes)[::-1]
    ends = [*[cut for cut in cuts if cut < len(names)], len(names)]
    primitive = primitive or algorithm(codec).primitives[0]
    groups = [
        PlannedGroup(tuple(names[begin:end]), codec, primitive, 0)
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    return Plan(world_size, sizes, tuple(groups), order, **more)


def trained(model: Any, steps: int, rank: int, *, lr: float = 0.3, first: int = 0) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch(rank, step))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def every_codec(cases: Sequence[tuple[str, str]], steps: int) -> dict[tuple[str, str], Any]:
    """Losses and weights by (codec, primitive); plain DDP's under ("ddp", "")."""
    outcomes: dict[tuple[str, str], Any] = {}
    with Door() as door:
        for codec, primitive in cases:
            model = built()
            plan = plan_by_hand(model, codec, door.world_size, primitive=primitive)
            wrapped = gradients.wrap(model, plan, door)
            losses = trained(wrapped, steps, door.rank)
            outcomes[codec, primitive] = (losses, weights(model))
        model = built()
        outcomes["ddp", ""] = (trained(DistributedDataParallel(model), steps, door.rank), weights(model))
    return outcomes


class GroupsSeen(NamedTuple):
    """Names by group: of the third pass; and as planned, without what has no values."""

    seen: list[list[str]]
    planned: list[list[str]]
    losses: list[float]


def groups_seen(options: dict[str, bool]) -> GroupsSeen:
    with Door() as door:
        model = built(**options)
        plan = plan_by_hand(model, "sign", door.world_size)
        wrapped = gradients.wrap(model, plan, door)
        losses = trained(wrapped, 3, door.rank)
        hook = gradients.hook_of(wrapped)
        seen = [sorted(hook._groups[number].names) for number in sorted(hook._groups)]
        planned = [sorted(name for name in group.names if plan.sizes[name]) for group in plan.groups]
        return GroupsSeen(seen, [group for group in planned if group], losses)


def conserved(codec: str, primitive: str, steps: int) -> tuple[float, float]:
    """How far what was sent plus what is remembered is from what came in; and the size of what came in."""
    with Door() as door:
        sizes = [700, 30, 1, 2000]
        names = [str(number) for number in range(len(sizes))]
        method = algorithm(codec)
        group = make_group(0, names, sizes, method, primitive, door, device=torch.device("cpu"))
        generator = torch.Generator().manual_seed(door.rank)
        came, went = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
        for step in range(steps):
            gradient = torch.randn(sum(sizes), generator=generator)
            came += gradient
            out = gradient.clone()
            group.post(out, step)
            assert group.finish(out)
            group.commit()
            went += out
        owed = torch.stack([torch.cat([state[name] for name in names]) for state in group.state().values()]).sum(0)
        all_came = door.gather(came, channel="test").mean(0)
        all_owed = door.gather(owed, channel="test").mean(0)
        return float((went + all_owed - all_came).abs().max()), float(all_came.abs().max())


class Poisoned(NamedTuple):
    """What a step with an infinite gradient does."""

    finite: list[bool]  # by parameter: the gradient that is applied
    same_memory: bool
    skipped: int
    loss: float  # two steps later
    warnings: list[str]


def poisoned(codec: str, primitive: str) -> Poisoned:
    """Rank 1's gradient of one tensor is infinite in the fourth step: the first layer's, of the last group."""
    with Door() as door, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = built()
        wrapped = gradients.wrap(model, plan_by_hand(model, codec, door.world_size, primitive=primitive), door)
        trained(wrapped, 3, door.rank)
        hook = gradients.hook_of(wrapped)
        before = hook.state_dict()
        handle = model.first.weight.register_hook(lambda gradient: gradient * torch.inf if door.rank == 1 else gradient)
        loss_of(wrapped, batch(door.rank, 3)).backward()
        handle.remove()
        finite = [
            bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters() if parameter.grad is not None
        ]
        after = hook.state_dict()
        same = all(torch.equal(before[name], after[name]) for name in before if name != "steps")
        wrapped.zero_grad()
        loss = trained(wrapped, 2, door.rank, first=5)[-1]
        words = [str(warning.message) for warning in said if issubclass(warning.category, RuntimeWarning)]
        return Poisoned(finite, same, hook.skipped, loss, words)


def resumed(codec: str, primitive: str, cuts: Sequence[int]) -> tuple[list[float], list[float]]:
    """Six steps; and three, then three more by a new wrapper with the old one's state, grouped by these cuts."""
    with Door() as door:
        model = built()
        plan = plan_by_hand(model, codec, door.world_size, primitive=primitive)
        whole = trained(gradients.wrap(model, plan, door), 7, door.rank)
        model = built()
        wrapped = gradients.wrap(model, plan, door)
        trained(wrapped, 4, door.rank)
        state = gradients.hook_of(wrapped).state_dict()
        regrouped = plan_by_hand(model, codec, door.world_size, primitive=primitive, cuts=cuts)
        again = gradients.wrap(model, regrouped, door, state=state)
        # A new wrapper's first pass is sent as it is; here it must change nothing.
        loss_of(again, batch(door.rank, 0)).backward()
        return whole[4:], trained(again, 3, door.rank, first=4)


def memory_after(codec: str, steps: int, state: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """What is remembered after so many steps that began with this state, or with nothing."""
    with Door() as door:
        model = built()
        wrapped = gradients.wrap(model, plan_by_hand(model, codec, door.world_size), door, state=state)
        assert all(torch.tensor(loss).isfinite() for loss in trained(wrapped, steps, door.rank))
        return {name: tensor.clone() for name, tensor in gradients.hook_of(wrapped).state_dict().items()}


def user_loop() -> dict[Any, Any]:
    """Accumulation, clipping, frozen, shared and mixed precision: plain DDP beside the codec `none`, and top-k."""
    norms: dict[Any, Any] = {}
    with Door() as door:
        for name, options in (("plain", {}), ("shared", {"shared": True}), ("unused", {"unused": True})):
            for kind in ("none", "topk:0.05", "ddp"):
                model = built(**options)
                model.first.bias.requires_grad_(name != "plain")
                if kind == "ddp":
                    wrapped = DistributedDataParallel(model, find_unused_parameters=name == "unused")
                else:
                    plan = plan_by_hand(model, kind, door.world_size, autocast=True)
                    wrapped = gradients.wrap(model, plan, door)
                norms[name, kind] = _accumulated(wrapped, door.rank)
    return norms


def _accumulated(model: DistributedDataParallel, rank: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for step in range(4):
        optimizer.zero_grad()
        with model.no_sync(), torch.autocast("cpu", torch.bfloat16):
            loss_of(model, batch(rank, 2 * step)).backward()
        with torch.autocast("cpu", torch.bfloat16):
            loss_of(model, batch(rank, 2 * step + 1)).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
    return norms


class Scaler:
    """A loss scaler that changes its mind."""

    def __init__(self) -> None:
        self.scale = 1024.0

    def get_scale(self) -> float:
        return self.scale


def scaled() -> tuple[list[Tensor], list[Tensor]]:
    """Gradients with a loss scaler, divided by its scale, and without one."""
    gradients_by_scaler = []
    with Door() as door:
        for scaler in (Scaler(), None):
            model = built()
            plan = plan_by_hand(model, "topk:0.1", door.world_size)
            wrapped = gradients.wrap(model, plan, door, scaler=scaler)
            for step in range(4):
                if scaler is not None:
                    scaler.scale = 2.0**step
                wrapped.zero_grad()
                scale = scaler.scale if scaler is not None else 1.0
                (loss_of(wrapped, batch(door.rank, step)) * scale).backward()
            scale = scaler.scale if scaler is not None else 1.0
            gradients_by_scaler.append(
                [parameter.grad / scale for parameter in model.parameters() if parameter.grad is not None]
            )
    return gradients_by_scaler[0], gradients_by_scaler[1]


def sent(codec: str, primitive: str) -> tuple[int, int]:
    """Bytes of this rank at the door in one step, and what the table of primitives says."""
    with Door() as door:
        sizes = [4096, 8192]
        method = algorithm(codec)
        group = make_group(0, ["a", "b"], sizes, method, primitive, door, device=torch.device("cpu"))
        assert isinstance(group, Coded)
        out = torch.randn(sum(sizes))
        door.books.take()
        group.post(out, 0)
        group.finish(out)
        books = door.books.take()
        return sum(book.bytes_sent for book in books.values()), sum(group._nbytes) - len(group._nbytes)


def books_of_steps(codec: str, primitive: str, steps: int, warm_up: int) -> list[dict[str, Any]]:
    """What left by each channel in each step, after DDP's first pass, whose groups are its own."""
    with Door() as door:
        model = built()
        plan = plan_by_hand(model, codec, door.world_size, primitive=primitive, warm_up_steps=warm_up)
        wrapped = gradients.wrap(model, plan, door)
        trained(wrapped, 1, door.rank)
        door.books.take()
        books_by_step = []
        for step in range(steps):
            trained(wrapped, 1, door.rank, first=step + 1)
            books_by_step.append({channel: book.to_json() for channel, book in door.books.take().items()})
        return books_by_step


class Branched(Net):
    """Half of it is used on some ranks only."""

    def __init__(self, *, rank: int) -> None:
        super().__init__(unused=True)
        self.rank = rank

    def forward(self, x: Tensor) -> Tensor:
        assert self.unused is not None
        return super().forward(x) + (self.unused(x.repeat(1, 2)[:, :30])[:, :4] if self.rank == 0 else 0.0)


class Profiled(NamedTuple):
    order: str
    profile: dict[str, Any]  # as JSON
    losses: list[float]


def profiled(kind: str) -> Profiled:
    """The order, the profile and the losses of a model that is odd in some way."""
    with Door() as door:
        torch.manual_seed(0)
        model = Branched(rank=door.rank) if kind == "branched" else built(**({kind: True} if kind else {}))
        profile = gradients.profile(model, batch(door.rank, 0), loss_of, door, codecs=["topk:0.05"], steps=2)
        wrapped = gradients.wrap(model, gradients.plan(profile, "topk:0.05"), door)
        return Profiled(profile.order, profile.to_json(), trained(wrapped, 4, door.rank))


class Planned(NamedTuple):
    profile: dict[str, Any]  # as JSON
    plan: Plan
    losses: list[float]
    done_s: list[float]  # by group


def planned(codecs: tuple[str, ...]) -> Planned:
    """Profile, plan, wrap and train as the README does."""
    with Door() as door:
        model = built()
        before = weights(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        profile = gradients.profile(
            model, batch(door.rank, 0), loss_of, door, codecs=codecs, optimizer=optimizer, steps=3
        )
        assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
        assert not optimizer.state
        plan = gradients.plan(profile, ",".join(codecs))
        assert plan.predicted is not None
        assert gradients.predict(profile, plan).step_s == pytest.approx(plan.predicted.step_s)
        wrapped = gradients.wrap(model, plan)
        losses = trained(wrapped, 4, door.rank)
        times = [group_times.done_s for group_times in gradients.hook_of(wrapped).times]
        gradients.hook_of(wrapped).door.close()
        return Planned(profile.to_json(), plan, losses, times)
