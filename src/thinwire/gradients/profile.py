"""Measure what the planner needs, on all ranks together: when gradients become ready, what codecs and wires cost."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.gradients import contention
from thinwire.gradients.algorithms import ALL_GATHER, ALL_REDUCE, AUTO, NONE, algorithm
from thinwire.gradients.costs import DEFINED, READY, Affine, CodecCost, Profile, TensorTimes
from thinwire.gradients.group import Group
from thinwire.links import Door
from thinwire.links.cost import Hinge, fit_hinge
from thinwire.links.payload import Payload
from thinwire.links.probe import measure

# Of each of three stretches, before, between and after all other measurements: a machine has good and bad seconds.
STEPS = 5
# Groups whose times tell a group's, a tensor's and a value's share apart: (tensors, values of each).
ONE, MANY, LONG = (1, 1_024), (33, 1_024), (1, 400_000)
# A codec is timed in blocks of about so long: ranks that share cores must have taken each other's.
CODEC_BLOCKS, CODEC_BLOCK_S = 5, 0.02
CODEC_MOST = 10
# In training a codec meets gradients that are in no cache: between two runs a rank reads so much else.
COLD_BYTES = 1 << 24
HANDED = 9
WIRE_BYTES = (1_000, 20_000, 100_000, 400_000, 1_500_000)

LossFunction = Callable[[nn.Module, Any], Tensor]


def profile(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    links: Door,
    *,
    codecs: Sequence[str] = AUTO,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = STEPS,
) -> Profile:
    """A few steps of `loss_fn(model, batch).backward()`, medians. The model, buffers and gradients stay as they were.

    `steps` are taken three times, at the beginning, in the middle and at the end of it all.
    Every rank calls it alike and gets the same profile. With the optimizer its time counts too, and it is restored.
    """
    if steps < 2:
        raise ValueError(f"profile: steps is {steps}; give 2 or more")
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    if not names:
        raise ValueError("profile: the model has no parameter that is trained")
    device = next(iter(model.parameters())).device
    transfers, post_s = _wires(links, device)

    def one_pass(on_ready: Callable[[int], None] = lambda number: None) -> _Pass:
        return _pass(model, batch, loss_fn, optimizer, names, links, on_ready)

    def stretch() -> list[_Pass]:
        return [one_pass() for _ in range(steps + 1)][1:]

    specs = dict.fromkeys([NONE, "bfloat16", *codecs])
    with _left_alone(model, optimizer):
        passes = stretch()
        beside = contention.measure(
            links,
            lambda on_ready: one_pass(on_ready).backward_s,
            min(int(each) for each in _mean(links, [[len(one.ready_s)] for one in passes])),
            lambda times: _usual(links, [[each] for each in times])[0],
            _usual(links, [[each.backward_s] for each in passes])[0],
            transfers[ALL_GATHER],
            device,
        )
        passes += stretch()
        costs = {spec: _codec_cost(spec, links, device) for spec in specs}
        passes += stretch()
    whole_s, rest_s = _usual(links, [[each.backward_s, each.rest_s] for each in passes])
    ready = list(passes[-1].ready_s)
    order = READY if set(ready) == set(names.values()) else DEFINED
    if order == DEFINED:  # some get no gradient: DDP then keeps to the order of definition, turned around
        ready = list(names.values())[::-1]
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    # Where ranks share cores a pass stands still here and there, elsewhere each time: a median of each increment would
    # leave that out. So shares are of the mean, and the whole is the usual pass.
    shares = _mean(links, [_increments(each, ready) for each in passes])
    told = [share * whole_s / max(sum(shares), 1e-12) for share in shares]
    return Profile(
        world_size=links.world_size,
        order=order,
        tensors=tuple(TensorTimes(name, sizes[name], taken) for name, taken in zip(ready, told, strict=True)),
        rest_s=rest_s + _buffers_s(model, links) + _skew_s(links, passes),
        codecs=costs,
        transfers=transfers,
        post_s=post_s,
        contention=beside,
    )


class _Pass:
    """When each gradient was ready, in seconds since backward began; what that took, and the rest of the step."""

    def __init__(self) -> None:
        self.ready_s: dict[str, float] = {}
        self.backward_s = 0.0
        self.rest_s = 0.0


def _pass(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer | None,
    names: dict[int, str],
    door: Door,
    on_ready: Callable[[int], None],
) -> _Pass:
    found = _Pass()
    model.zero_grad(set_to_none=True)
    door.told(torch.zeros(1), channel="profile")  # all together, as in training
    start = time.perf_counter()
    loss = loss_fn(model, batch)
    begun = time.perf_counter()

    def note(parameter: Tensor) -> None:
        found.ready_s[names[id(parameter)]] = time.perf_counter() - begun
        on_ready(len(found.ready_s) - 1)

    handles = [each.register_post_accumulate_grad_hook(note) for each in model.parameters() if each.requires_grad]
    try:
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    ended = time.perf_counter()
    if optimizer is not None:
        optimizer.step()
    found.backward_s = ended - begun
    found.rest_s = begun - start + time.perf_counter() - ended
    return found


def _skew_s(door: Door, passes: Sequence["_Pass"]) -> float:
    """How much later than the usual rank the last one is: all wait for it. Ranks that share cores take turns."""
    own = torch.tensor([each.backward_s + each.rest_s for each in passes], dtype=torch.float64)
    told = door.told(own, channel="profile")
    return float((told.max(dim=0).values - told.mean(dim=0)).median())


def _buffers_s(model: nn.Module, door: Door) -> float:
    """What DDP takes before every forward pass to give all ranks the first one's buffers, batch norms' say."""
    buffers = [each for each in model.buffers() if each.numel()]
    if door.world_size == 1 or not buffers:
        return 0.0
    flat = torch.zeros(sum(each.nbytes for each in buffers), dtype=torch.uint8, device=buffers[0].device)
    times = []
    for _ in range(HANDED):
        door.told(torch.zeros(1), channel="profile")
        start = time.perf_counter()
        door.broadcast(flat, 0, channel="profile").wait()
        times.append([time.perf_counter() - start])
    return _usual(door, times)[0]


def _increments(each: _Pass, order: Sequence[str]) -> list[float]:
    """Seconds of backward that each tensor adds, in this order; one out of turn has waited for those before it."""
    now, found = 0.0, []
    for name in order:
        ready_s = max(now, each.ready_s.get(name, now))
        found.append(ready_s - now)
        now = ready_s
    return found


def _usual(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    """Column by column the median of this rank's, and the mean of all ranks': the same on every rank."""
    own = torch.tensor(rows, dtype=torch.float64).median(dim=0).values
    mean: list[float] = door.told(own, channel="profile").mean(dim=0).tolist()
    return mean


def _mean(door: Door, rows: Sequence[Sequence[float]]) -> list[float]:
    own = torch.tensor(rows, dtype=torch.float64).mean(dim=0)
    mean: list[float] = door.told(own, channel="profile").mean(dim=0).tolist()
    return mean


@contextmanager
def _left_alone(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Everything that a step changes is put back."""
    gradients = [each.grad for each in model.parameters()]
    kept = [each.detach().clone() for each in (*model.buffers(), *(model.parameters() if optimizer else ()))]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None
    with torch.random.fork_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                changed = (*model.buffers(), *(model.parameters() if optimizer else ()))
                for each, value in zip(changed, kept, strict=True):
                    each.copy_(value)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            if optimizer is not None and state is not None:
                optimizer.load_state_dict(state)


def _codec_cost(spec: str, door: Door, device: torch.device) -> CodecCost:
    """Timed by all ranks at once: on a machine they share they take each other's cores."""
    kinds = [_times(spec, *shape, door, device) for shape in (ONE, MANY, LONG)]
    return CodecCost(*(_affine(*times) for times in zip(*kinds, strict=True)))


def _times(spec: str, tensors: int, values: int, door: Door, device: torch.device) -> list[float]:
    """Medians: encode, add, decode."""
    found = algorithm(spec)
    primitive = found.primitives[0]
    group = Group(0, [str(i) for i in range(tensors)], [values] * tensors, found, primitive, door, device=device)
    generator = torch.Generator(device).manual_seed(0)
    gradient = torch.randn(tensors * values, generator=generator, device=device)
    total = torch.zeros_like(gradient)
    other = torch.zeros(COLD_BYTES, dtype=torch.uint8, device=device)

    def rehearsed() -> list[float]:
        other.add_(1)
        return group.rehearse(gradient, total)

    # As many on all ranks, by what the first few have taken.
    once_s = _usual(door, [[sum(rehearsed())] for _ in range(3)])[0]
    count = max(1, min(CODEC_MOST, int(CODEC_BLOCK_S / max(once_s, 1e-6))))
    rows = []
    for _ in range(CODEC_BLOCKS):
        door.told(torch.zeros(1), channel="profile")
        block = [rehearsed() for _ in range(count)]
        rows.append([statistics.fmean(column) for column in zip(*block, strict=True)])
    return _usual(door, rows)


def _affine(one_s: float, many_s: float, long_s: float) -> Affine:
    value_s = max(long_s - one_s, 0.0) / (LONG[1] - ONE[1])
    extra = MANY[0] - ONE[0]
    tensor_s = max((many_s - one_s) / extra - ONE[1] * value_s, 0.0)
    return Affine(max(one_s - tensor_s - ONE[1] * value_s, 0.0), tensor_s, value_s)


def _wires(door: Door, device: torch.device) -> tuple[dict[str, Hinge], float]:
    """Each collective's seconds over a rank's bytes, and what it takes to hand a message over."""
    n = door.world_size
    kinds = (ALL_GATHER, ALL_REDUCE, "all_to_all")
    if n == 1:
        return dict.fromkeys(kinds, Hinge(0.0, 0.0, 0.0)), 0.0
    payloads = {(kind, size): Payload.even(kind, size, n) for kind in kinds for size in WIRE_BYTES}
    seconds = measure(door, dict.fromkeys(payloads.values(), 3))
    found = {
        kind: fit_hinge([float(size) for size in WIRE_BYTES], [seconds[payloads[kind, size]] for size in WIRE_BYTES])
        for kind in kinds
    }
    handed = []
    small = torch.zeros(64, dtype=torch.uint8, device=device)
    for _ in range(HANDED):
        start = time.perf_counter()
        transfer = door.all_gather(small, [small.nbytes] * n, channel="profile")
        handed.append(time.perf_counter() - start)
        transfer.wait()
    return found, _usual(door, [[statistics.median(handed)]])[0]
