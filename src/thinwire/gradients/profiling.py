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

# Steps in each of three stretches: before, between and after the other measurements. A machine's speed varies in time.
STEPS = 5
# Repetitions of the shortest measurements: posting one small message, and broadcasting the buffers.
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
    """Measure a few steps of `loss_fn(model, batch).backward()`. The model, buffers and gradients stay as they were.

    `steps` steps are taken three times: at the beginning, in the middle and at the end. All ranks of the door call it
    with the same arguments and get the same profile. If an optimizer is given, its time counts too, and its state is
    restored. Set `find_unused_parameters` where some parameters get no gradient in other steps than these; those that
    get none here are noticed without it.
    """
    if steps < 2:
        raise ValueError(f"profile: steps is {steps}; give 2 or more")
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
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
            min(int(count) for count in columns.means(door, [[len(step.ready_s)] for step in passes])),
            columns.medians(door, [[step.backward_s] for step in passes])[0],
            transfers[ALL_GATHER],
            device,
        )
        passes += stretch()
        lengths = [
            parameter.numel() for parameter in model.parameters() if parameter.requires_grad and parameter.numel()
        ][::-1]
        share = _share(door, passes)
        costs = {spec: codec_cost(spec, lengths or [1], share, door, device) for spec in specs}
        passes += stretch()
        message = torch.zeros(sum(lengths) or 1, device=device)
        plain = [one_pass(message=message) for _ in range(steps + 1)][1:]
    whole_s, rest_s = columns.medians(door, [[step.backward_s, step.rest_s] for step in passes])
    order, ready = _order(door, passes, list(names.values()), find_unused_parameters)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    # Where ranks share cores, a pass stops now and then, at another tensor each time. Medians by tensor would leave
    # these stops out. So each tensor's share is taken from the means, and the total is the median pass.
    shares = columns.means(door, [_increments(step, ready) for step in passes])
    times = [share * whole_s / max(sum(shares), 1e-12) for share in shares]
    buffers_s = _buffers_s(model, door)
    [plain_s] = columns.medians(door, [[step.backward_s + step.message_s + step.rest_s] for step in plain])
    return Profile(
        world_size=door.world_size,
        order=order,
        tensors=tuple(
            TensorTimes(name, sizes[name], backward_s) for name, backward_s in zip(ready, times, strict=True)
        ),
        rest_s=rest_s + buffers_s + _skew_s(door, passes),
        codecs=costs,
        transfers=transfers,
        post_s=share * post_s,
        contention=beside,
        plain_step_s=plain_s + buffers_s,
    )


def _order(door: Door, passes: Sequence["_Pass"], defined: Sequence[str], any_unused: bool) -> tuple[str, list[str]]:
    """The order in which gradients become ready. All ranks use the first rank's, as DDP does.

    Where some rank gets no gradient for a parameter, DDP keeps to the reverse order of definition.
    """
    complete = not any_unused and all(set(step.ready_s) == set(defined) for step in passes)
    places = [defined.index(name) for name in passes[-1].ready_s] if complete else [-1] * len(defined)
    gathered = door.gather(torch.tensor(places), channel="profile").tolist()
    if any(-1 in rank_places for rank_places in gathered):
        return DEFINED, list(defined)[::-1]
    return READY, [defined[place] for place in gathered[0]]


class _Pass:
    """When each gradient was ready, in seconds since backward began, and how long the parts of the step took."""

    def __init__(self) -> None:
        self.ready_s: dict[str, float] = {}
        self.backward_s = 0.0
        self.busy_s = 0.0  # the part of backward in which this rank had a processor
        self.rest_s = 0.0  # forward and the optimizer
        self.message_s = 0.0  # the sum over ranks, if a message was given


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
    """Take a step. The message, if there is one, is summed over ranks between backward and the optimizer."""
    taken = _Pass()
    model.zero_grad(set_to_none=True)
    door.barrier(channel=columns.CHANNEL)
    start = time.perf_counter()
    loss = loss_fn(model, batch)
    clock = clock_of(loss.device)
    begun, busy = time.perf_counter(), clock()

    def note(parameter: Tensor) -> None:
        taken.ready_s[names[id(parameter)]] = time.perf_counter() - begun
        on_ready(len(taken.ready_s) - 1)

    handles = [
        parameter.register_post_accumulate_grad_hook(note)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    try:
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    ended, taken.busy_s = time.perf_counter(), clock() - busy
    if message is not None:
        door.all_reduce(message, channel="profile").wait()
    summed = time.perf_counter()
    if optimizer is not None:
        optimizer.step()
    taken.backward_s, taken.message_s = ended - begun, summed - ended
    taken.rest_s = begun - start + time.perf_counter() - summed
    return taken


def _share(door: Door, passes: Sequence["_Pass"]) -> float:
    """Seconds that pass per second of computation: 1 where a rank has its own processor, 2 where two share one."""
    whole_s, busy_s = columns.means(door, [[step.backward_s, step.busy_s] for step in passes])
    return max(1.0, whole_s / max(busy_s, 1e-9))


def _skew_s(door: Door, passes: Sequence["_Pass"]) -> float:
    """How much later than the average rank the last rank ends a step, for all ranks wait for it.

    Ranks that share cores take turns, so they never all end together.
    """
    steps_s = torch.tensor([step.backward_s + step.rest_s for step in passes], dtype=torch.float64)
    gathered = door.gather(steps_s, channel="profile")
    return float((gathered.max(dim=0).values - gathered.mean(dim=0)).median())


def _buffers_s(model: nn.Module, door: Door) -> float:
    """Seconds of DDP's broadcast of the first rank's buffers (a batch norm's, say) before every forward pass."""
    buffers = [buffer for buffer in model.buffers() if buffer.numel()]
    if door.world_size == 1 or not buffers:
        return 0.0
    flat = torch.zeros(sum(buffer.nbytes for buffer in buffers), dtype=torch.uint8, device=buffers[0].device)
    times = []
    for _ in range(HANDED):
        door.barrier(channel=columns.CHANNEL)
        start = time.perf_counter()
        door.broadcast(flat, 0, channel="profile").wait()
        times.append([time.perf_counter() - start])
    return columns.medians(door, times)[0]


def _increments(step: _Pass, order: Sequence[str]) -> list[float]:
    """Seconds of backward that each tensor adds, in this order. A tensor counts as ready once all before it are."""
    now, increments = 0.0, []
    for name in order:
        ready_s = max(now, step.ready_s.get(name, now))
        increments.append(ready_s - now)
        now = ready_s
    return increments


@contextmanager
def _left_alone(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """A block after which everything that a step changes is restored."""
    gradients = [parameter.grad for parameter in model.parameters()]
    kept = [tensor.detach().clone() for tensor in (*model.buffers(), *(model.parameters() if optimizer else ()))]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None
    with torch.random.fork_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                changed = (*model.buffers(), *(model.parameters() if optimizer else ()))
                for tensor, value in zip(changed, kept, strict=True):
                    tensor.copy_(value)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            if optimizer is not None and state is not None:
                optimizer.load_state_dict(state)


def _wires(door: Door, device: torch.device) -> tuple[dict[str, Hinge], float]:
    """Each collective's seconds as a function of a rank's bytes; and the seconds a rank itself takes to post one."""
    n = door.world_size
    kinds = (ALL_GATHER, ALL_REDUCE, "all_to_all")
    if n == 1:
        return dict.fromkeys(kinds, Hinge(0.0, 0.0, 0.0)), 0.0
    payloads = {(kind, size): Payload.even(kind, size, n) for kind in kinds for size in WIRE_BYTES}
    seconds = measure(door, dict.fromkeys(payloads.values(), 3))
    hinges = {
        kind: fit_hinge([float(size) for size in WIRE_BYTES], [seconds[payloads[kind, size]] for size in WIRE_BYTES])
        for kind in kinds
    }
    post_s, clock = [], clock_of(device)
    small = torch.zeros(64, dtype=torch.uint8, device=device)
    for _ in range(HANDED):
        start = clock()
        transfer = door.all_gather(small, [small.nbytes] * n, channel="profile")
        post_s.append(clock() - start)
        transfer.wait()
    return hinges, columns.medians(door, [[statistics.median(post_s)]])[0]
