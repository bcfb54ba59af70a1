"""When each group of gradients is compressed, sent and decompressed: the model that Cupcake (MLSys 2023) plans by.

Tensors are numbered in the order in which backward makes their gradients. Group j holds the tensors from e_{j-1} up to
e_j and goes by one route: a codec, and the primitive that exchanges its payloads. With h, g and d its seconds of
compression, transfer and decompression, and b those of backward,

    C_j = C_{j-1} + b + h        compression shares the engine with backward, and delays it
    D_j = max(C_j, D_{j-1}) + g  one channel, first in first out
    R_j = max(R_{j-1}, D_j, C_y) + d  decompression after backward, in order; R_y is the end

h and d consist of a fixed part for the group and a part for each tensor in it; g is any function of the group's bytes.
Pure.

Where ranks compute on the same cores that carry messages, transfers and backward slow each other down. A transfer
delays backward by its toll, which is included in h, and backward makes a transfer longer by its lag. Both happen only
while backward runs. The planner charges the toll to all groups and the lag to none. `replay(predict=True)` charges both
to the groups that depart before backward ends, at the time when they depart. It also makes a transfer that had to wait
for the one before it shorter, by its haste.
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
    """What compressing, sending and decompressing takes by one codec and primitive, tensor by tensor.

    `transfer_s` need not rise with the bytes. Where it is infinite, that number of bytes can't be sent in one group.
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
    """The times of all groups of a plan. `backward_end_s` is C_y, when the last group has been compressed."""

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
    """The timeline of the plan whose groups end at `ends` and go by the routes numbered `chosen`.

    `predict`: with tolls, lags and haste where they occur, instead of the planner's simpler model.
    """
    require_model(backward_s, routes)
    _require_plan(len(backward_s), len(routes), ends, chosen)
    backward_sums = prefix_sums(backward_s)
    sums = {
        route: [
            prefix_sums(values)
            for values in (routes[route].compress_s, routes[route].decompress_s, routes[route].nbytes)
        ]
        for route in set(chosen)
    }
    parts = []
    for start, end, route in zip([0, *ends[:-1]], ends, chosen, strict=True):
        compress, decompress, size = (float(tensor_sums[end] - tensor_sums[start]) for tensor_sums in sums[route])
        parts.append((route, float(backward_sums[end] - backward_sums[start]), compress, decompress, size))
    return _assembled(routes, parts, *(_predicted if predict else _planned)(routes, parts))


Part = tuple[int, float, float, float, float]  # of a group: route, backward, compression, decompression, bytes
Span = tuple[float, float]


def _planned(routes: Sequence[Route], parts: Sequence[Part]) -> tuple[list[Span], list[Span]]:
    """Each group's compression and transfer in the planner's model."""
    compressed, sent = [], []
    ready = free = 0.0  # C and D
    for route, backward, compress, _, size in parts:
        begin = ready + backward
        ready = begin + (routes[route].compress_fixed_s + compress)
        compressed.append((begin, ready))
        departure = max(ready, free)
        free = departure + routes[route].send_s(size)
        sent.append((departure, free))
    return compressed, sent


def _predicted(routes: Sequence[Route], parts: Sequence[Part]) -> tuple[list[Span], list[Span]]:
    """The same with contention: a transfer that departs while the rank computes delays computation and is delayed."""
    compressed: list[Span] = []
    sent: list[Span] = []
    waiting: deque[tuple[int, float]] = deque()
    free = 0.0

    def departure() -> float:
        return max(compressed[len(sent)][1], free)

    def depart(lag: bool) -> float:
        """Send the next group; return its toll."""
        nonlocal free
        number, size = waiting.popleft()
        begin, route = departure(), routes[number]
        haste = route.haste_s if begin > compressed[len(sent)][1] else 0.0
        free = begin + max(route.send_s(size) - haste, 0.0) + (route.lag_s if lag else 0.0)
        sent.append((begin, free))
        return route.toll_s(size)

    def worked(begin: float, seconds: float) -> float:
        """When a computation of this length ends, with the tolls of the transfers that depart meanwhile."""
        end = begin + seconds
        while waiting and departure() < end:
            end += depart(lag=True)
        return end

    now = 0.0
    for route, backward, compress, _, size in parts:
        begin = worked(now, backward)
        now = worked(begin, max(routes[route].compress_fixed_s + compress - routes[route].toll_s(size), 0.0))
        compressed.append((begin, now))
        waiting.append((route, size))
    while waiting:
        depart(lag=False)
    return compressed, sent


def _assembled(
    routes: Sequence[Route], parts: Sequence[Part], compressed: Sequence[Span], sent: Sequence[Span]
) -> Timeline:
    groups, over = [], compressed[-1][1]  # R
    for (route, _, _, decompress, _), compression, transfer in zip(parts, compressed, sent, strict=True):
        begin = max(over, transfer[1])
        over = begin + (routes[route].decompress_fixed_s + decompress)
        groups.append(GroupTimes(*compression, *transfer, begin, over))
    return Timeline(tuple(groups))


def prefix_sums(values: Sequence[float]) -> Array:
    """The sums of the first 0, 1, 2, ... values.

    Both `replay` and the planner take a group's bytes as a difference of two of these sums. A transfer time that jumps
    at some size must see exactly the same number in both.
    """
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
