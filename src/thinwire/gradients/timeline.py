"""When each group of gradients is compressed, sent and decompressed: the model that Cupcake (MLSys 2023) plans by.

Tensors are numbered in the order in which backward makes their gradients. Group j holds those from e_{j-1} up to e_j,
and goes by one route: a codec, and a primitive by which payloads meet. With h, g, d its seconds of compression,
transfer and decompression and b those of backward,

    C_j = C_{j-1} + b + h        compression shares the engine with backward, and delays it
    D_j = max(C_j, D_{j-1}) + g  one channel, first in first out
    R_j = max(R_{j-1}, D_j, C_y) + d  decompression after backward, in order; R_y is the end

h and d have a part for the group and one for each tensor in it, g is any function of the group's bytes. Pure.

Where ranks compute on the cores that carry messages, a transfer takes something from backward, its toll, which h has in
it, and backward makes a transfer longer, by its lag. Both only while backward runs: the planner charges every group the
toll and none the lag; `replay`, where it is to predict a step, those that depart before the end, and then. There, too,
a transfer that has waited for the one before it is as much shorter as its haste.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Route:
    """What compressing, sending and decompressing takes: a codec and a primitive, tensor by tensor.

    `transfer_s` need not rise with the bytes; where it is infinite, so many can't go at once.
    """

    name: str
    compress_s: tuple[float, ...]
    decompress_s: tuple[float, ...]
    nbytes: tuple[float, ...]
    compress_fixed_s: float
    decompress_fixed_s: float
    transfer_s: Callable[[float], float]
    toll_s: Callable[[float], float] = lambda nbytes: 0.0
    lag_s: float = 0.0
    haste_s: float = 0.0

    def __post_init__(self) -> None:
        for field in ("compress_s", "decompress_s", "nbytes"):
            values = getattr(self, field)
            if len(values) != len(self.nbytes):
                raise ValueError(f"route {self.name!r}: {field} of {len(values)} tensors, nbytes of {len(self.nbytes)}")
            require_times(f"route {self.name!r}: {field}", values)
        for field in ("compress_fixed_s", "decompress_fixed_s", "lag_s", "haste_s"):
            require_times(f"route {self.name!r}: {field}", (getattr(self, field),))

    def send_s(self, nbytes: float) -> float:
        seconds = float(self.transfer_s(nbytes))
        if not seconds >= 0:
            raise ValueError(f"route {self.name!r}: transfer_s({nbytes:g}) is {seconds}; give seconds, 0 or more")
        return seconds


@dataclass(frozen=True)
class GroupTimes:
    """A group's three spans, in seconds from the start of backward."""

    compress_begin_s: float
    compress_end_s: float
    transfer_begin_s: float
    transfer_end_s: float
    decompress_begin_s: float
    decompress_end_s: float


@dataclass(frozen=True)
class Timeline:
    """Every group of a plan; `backward_end_s` is C_y, when the last one has been compressed."""

    groups: tuple[GroupTimes, ...]

    @property
    def backward_end_s(self) -> float:
        return self.groups[-1].compress_end_s

    @property
    def seconds(self) -> float:
        return self.groups[-1].decompress_end_s


def replay(
    backward_s: Sequence[float],
    routes: Sequence[Route],
    ends: Sequence[int],
    chosen: Sequence[int],
    *,
    predict: bool = False,
) -> Timeline:
    """What the plan takes whose groups end at `ends` and go by the routes numbered `chosen`.

    `predict`: with tolls and lags where they fall, not as the planner reckons.
    """
    require_model(backward_s, routes)
    _require_plan(len(backward_s), len(routes), ends, chosen)
    made = prefix_sums(backward_s)
    sums = {
        route: [
            prefix_sums(each) for each in (routes[route].compress_s, routes[route].decompress_s, routes[route].nbytes)
        ]
        for route in set(chosen)
    }
    parts = []
    for start, end, route in zip([0, *ends[:-1]], ends, chosen, strict=True):
        compress, decompress, size = (float(each[end] - each[start]) for each in sums[route])
        parts.append((route, float(made[end] - made[start]), compress, decompress, size))
    return _assembled(routes, parts, *(_predicted if predict else _reckoned)(routes, parts))


Part = tuple[int, float, float, float, float]  # of a group: route, backward, compression, decompression, bytes
Span = tuple[float, float]


def _reckoned(routes: Sequence[Route], parts: Sequence[Part]) -> tuple[list[Span], list[Span]]:
    """Groups' compression and transfer, as the planner has them."""
    made, sent = [], []
    ready = free = 0.0  # C and D
    for route, backward, compress, _, size in parts:
        begin = ready + backward
        ready = begin + (routes[route].compress_fixed_s + compress)
        made.append((begin, ready))
        departure = max(ready, free)
        free = departure + routes[route].send_s(size)
        sent.append((departure, free))
    return made, sent


def _predicted(routes: Sequence[Route], parts: Sequence[Part]) -> tuple[list[Span], list[Span]]:
    """The same as it happens: what departs while the engine works delays that, and is delayed."""
    made: list[Span] = []
    sent: list[Span] = []
    waiting: deque[tuple[int, float]] = deque()
    free = 0.0

    def departure() -> float:
        return max(made[len(sent)][1], free)

    def depart(lag: bool) -> float:
        """The next one; its toll."""
        nonlocal free
        route, size = waiting.popleft()
        begin, own = departure(), routes[route]
        haste = own.haste_s if begin > made[len(sent)][1] else 0.0
        free = begin + max(own.send_s(size) - haste, 0.0) + (own.lag_s if lag else 0.0)
        sent.append((begin, free))
        return own.toll_s(size)

    def worked(begin: float, seconds: float) -> float:
        end = begin + seconds
        while waiting and departure() < end:
            end += depart(lag=True)
        return end

    now = 0.0
    for route, backward, compress, _, size in parts:
        begin = worked(now, backward)
        now = worked(begin, max(routes[route].compress_fixed_s + compress - routes[route].toll_s(size), 0.0))
        made.append((begin, now))
        waiting.append((route, size))
    while waiting:
        depart(lag=False)
    return made, sent


def _assembled(routes: Sequence[Route], parts: Sequence[Part], made: Sequence[Span], sent: Sequence[Span]) -> Timeline:
    groups, over = [], made[-1][1]  # R
    for (route, _, _, decompress, _), compressed, transferred in zip(parts, made, sent, strict=True):
        begin = max(over, transferred[1])
        over = begin + (routes[route].decompress_fixed_s + decompress)
        groups.append(GroupTimes(*compressed, *transferred, begin, over))
    return Timeline(tuple(groups))


def prefix_sums(values: Sequence[float]) -> Array:
    """Of none, of the first, of the first two, ... A group's bytes are a difference of two, here as in the planner:
    a transfer that jumps at some size must see the same number in both."""
    return np.concatenate(([0.0], np.cumsum(np.asarray(values, dtype=np.float64))))


def require_model(backward_s: Sequence[float], routes: Sequence[Route]) -> None:
    if not len(backward_s):
        raise ValueError("backward_s is empty: there is nothing to send")
    require_times("backward_s", backward_s)
    if not routes:
        raise ValueError("no route to send by; give at least one (no compression is a route too)")
    for route in routes:
        if len(route.nbytes) != len(backward_s):
            raise ValueError(
                f"route {route.name!r} is for {len(route.nbytes)} tensors, backward_s has {len(backward_s)}; "
                "measure both on the same model"
            )


def require_times(name: str, values: Sequence[float]) -> None:
    for number, value in enumerate(values):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}[{number}] is {value}; give finite numbers, 0 or more")


def _require_plan(num_tensors: int, num_routes: int, ends: Sequence[int], chosen: Sequence[int]) -> None:
    if len(ends) != len(chosen):
        raise ValueError(f"{len(ends)} ends and {len(chosen)} chosen routes; give one route for each group")
    previous = 0
    for number, (end, route) in enumerate(zip(ends, chosen, strict=True)):
        if end <= previous:
            raise ValueError(f"group {number} ends at {end}, the one before it at {previous}; ends must rise from 1")
        if not 0 <= route < num_routes:
            raise ValueError(f"group {number} goes by route {route}; there are {num_routes}, numbered from 0")
        previous = end
    if previous != num_tensors:
        raise ValueError(f"the last group ends at {previous}; it must end at {num_tensors}, behind the last tensor")
