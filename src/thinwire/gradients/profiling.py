"""Measure what the planner needs, on all ranks together: when gradients become ready, what codecs and wires cost."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.gradients import columns, contention
from thinwire.gradients.algorithms import ALL_GATHER, ALL_REDUCE, AUTO, NONE
from thinwire.gradients.costs import DEFINED, READY, Profile, TensorTimes
from thinwire.gradients.measure import clock_of, codec_cost
from thinwire.links import Door
from thinwire.links.cost import Hinge, fit_hinge
from thinwire.links.payload import Payload
from thinwire.links.probe import measure

# Of each of three stretches, before, between and after all other measurements: a machine has good and bad seconds.
STEPS = 5
HANDED = 9
WIRE_BYTES = (1_000, 20_000, 100_000, 400_000, 1_500_000)

LossFunction = Callable[[nn.Module, Any], Tensor]


def profile(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    door: Door,
    *,
    codecs: Sequence[str] = AUTO,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = STEPS,
    find_unused_parameters: bool = False,
) -> Profile:
    """A few steps of `loss_fn(model, batch).backward()`, medians. The model, buffers and gradients stay as they were.

    `steps` are taken three times, at the beginning, in the middle and at the end of it all.
    Every rank of the door calls it alike and gets the same profile. With the optimizer its time counts too, and it is
    restored. `find_unused_parameters` where some get no gradient in other steps than these: these show by themselves.
    """
    if steps < 2:
        raise ValueError(f"profile: steps is {steps}; give 2 or more")
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    if not names:
        raise ValueError("profile: the model has no parameter that is trained")
    device = next(iter(model.parameters())).device
    transfers, post_s = _wires(door, device)

    def one_pass(on_ready: Callable[[int], None] = lambda number: None, message: Tensor | None = None) -> _Pass:
        return _pass(model, batch, loss_fn, optimizer, names, door, on_ready, message)

    def stretch() -> list[_Pass]:
        return [one_pass() for _ in range(steps + 1)][1:]

    specs = dict.fromkeys([NONE, "bfloat16", *codecs])
    with _left_alone(model, optimizer):
        passes = stretch()
        beside = contention.measure(
            door,
            lambda on_ready: one_pass(on_ready).backward_s,
            min(int(each) for each in columns.means(door, [[len(one.ready_s)] for one in passes])),
            columns.medians(door, [[each.backward_s] for each in passes])[0],
            transfers[ALL_GATHER],
            device,
        )
        passes += stretch()
        own = [each.numel() for each in model.parameters() if each.requires_grad and each.numel()][::-1]
        share = _share(door, passes)
        costs = {spec: codec_cost(spec, own or [1], share, door, device) for spec in specs}
        passes += stretch()
        message = torch.zeros(sum(own) or 1, device=device)
        plain = [one_pass(message=message) for _ in range(steps + 1)][1:]
    whole_s, rest_s = columns.medians(door, [[each.backward_s, each.rest_s] for each in passes])
    order, ready = _order(door, passes, list(names.values()), find_unused_parameters)
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    # Where ranks share cores a pass stands still here and there, elsewhere each time: a median of each increment would
    # leave that out. So shares are of the mean, and the whole is the usual pass.
    shares = columns.means(door, [_increments(each, ready) for each in passes])
    times = [share * whole_s / max(sum(shares), 1e-12) for share in shares]
    buffers_s = _buffers_s(model, door)
    [plain_s] = columns.medians(door, [[step.backward_s + step.message_s + step.rest_s] for step in plain])
    return Profile(
        world_size=door.world_size,
        order=order,
        tensors=tuple(TensorTimes(name, sizes[name], taken) for name, taken in zip(ready, times, strict=True)),
        rest_s=rest_s + buffers_s + _skew_s(door, passes),
        codecs=costs,
        transfers=transfers,
        post_s=share * post_s,
        contention=beside,
        plain_step_s=plain_s + buffers_s,
    )


def _order(door: Door, passes: Sequence["_Pass"], defined: Sequence[str], any_unused: bool) -> tuple[str, list[str]]:
    """In which order gradients come, the same on all ranks: the first one's, as DDP has it.

    Where somebody gets none for a parameter, DDP keeps to the order of definition, turned around.
    """
    complete = not any_unused and all(set(each.ready_s) == set(defined) for each in passes)
    own = [defined.index(name) for name in passes[-1].ready_s] if complete else [-1] * len(defined)
    gathered = door.gather(torch.tensor(own), channel="profile").tolist()
    if any(-1 in places for places in gathered):
        return DEFINED, list(defined)[::-1]
    return READY, [defined[place] for place in gathered[0]]


class _Pass:
    """When each gradient was ready, in seconds since backward began; what that took, and the rest of the step."""

    def __init__(self) -> None:
        self.ready_s: dict[str, float] = {}
        self.backward_s = 0.0
        self.busy_s = 0.0  # of backward, in which this rank had a processor
        self.rest_s = 0.0
        self.message_s = 0.0


def _pass(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer | None,
    names: dict[int, str],
    door: Door,
    on_ready: Callable[[int], None],
    message: Tensor | None = None,
) -> _Pass:
    """A step. A message is summed over ranks between backward and the optimizer."""
    found = _Pass()
    model.zero_grad(set_to_none=True)
    door.barrier(channel=columns.CHANNEL)
    start = time.perf_counter()
    loss = loss_fn(model, batch)
    clock = clock_of(loss.device)
    begun, busy = time.perf_counter(), clock()

    def note(parameter: Tensor) -> None:
        found.ready_s[names[id(parameter)]] = time.perf_counter() - begun
        on_ready(len(found.ready_s) - 1)

    handles = [each.register_post_accumulate_grad_hook(note) for each in model.parameters() if each.requires_grad]
    try:
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    ended, found.busy_s = time.perf_counter(), clock() - busy
    if message is not None:
        door.all_reduce(message, channel="profile").wait()
    summed = time.perf_counter()
    if optimizer is not None:
        optimizer.step()
    found.backward_s, found.message_s = ended - begun, summed - ended
    found.rest_s = begun - start + time.perf_counter() - summed
    return found


def _share(door: Door, passes: Sequence["_Pass"]) -> float:
    """Seconds that pass while a rank computes for one: 1 where it has a processor to itself, 2 where two share one."""
    whole_s, busy_s = columns.means(door, [[each.backward_s, each.busy_s] for each in passes])
    return max(1.0, whole_s / max(busy_s, 1e-9))


def _skew_s(door: Door, passes: Sequence["_Pass"]) -> float:
    """How much later than the usual rank the last one is: all wait for it. Ranks that share cores take turns."""
    own = torch.tensor([each.backward_s + each.rest_s for each in passes], dtype=torch.float64)
    gathered = door.gather(own, channel="profile")
    return float((gathered.max(dim=0).values - gathered.mean(dim=0)).median())


def _buffers_s(model: nn.Module, door: Door) -> float:
    """What DDP takes before every forward pass to give all ranks the first one's buffers, batch norms' say."""
    buffers = [each for each in model.buffers() if each.numel()]
    if door.world_size == 1 or not buffers:
        return 0.0
    flat = torch.zeros(sum(each.nbytes for each in buffers), dtype=torch.uint8, device=buffers[0].device)
    times = []
    for _ in range(HANDED):
        door.barrier(channel=columns.CHANNEL)
        start = time.perf_counter()
        door.broadcast(flat, 0, channel="profile").wait()
        times.append([time.perf_counter() - start])
    return columns.medians(door, times)[0]


def _increments(each: _Pass, order: Sequence[str]) -> list[float]:
    """Seconds of backward that each tensor adds, in this order; one out of turn has waited for those before it."""
    now, found = 0.0, []
    for name in order:
        ready_s = max(now, each.ready_s.get(name, now))
        found.append(ready_s - now)
        now = ready_s
    return found


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


def _wires(door: Door, device: torch.device) -> tuple[dict[str, Hinge], float]:
    """Each collective's seconds over a rank's bytes, and what it takes to hand a message over, of a rank's own."""
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
    handed, clock = [], clock_of(device)
    small = torch.zeros(64, dtype=torch.uint8, device=device)
    for _ in range(HANDED):
        start = clock()
        transfer = door.all_gather(small, [small.nbytes] * n, channel="profile")
        handed.append(clock() - start)
        transfer.wait()
    return found, columns.medians(door, [[statistics.median(handed)]])[0]
