"""Choose which host sends each shipment, and when, so that the last ends early; with a lower bound on its end. Pure.

A shipment occupies the `out` port of its sending host and the `in` port of every receiving host. Each receiver passes
the data on to the next, so the `out` ports of all receivers but the last are busy too. Hosts send and receive at once.

The bound is a linear program: shipments may be split between senders and interrupted, and no port may be busy for
longer than the total time. No schedule beats it.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

# Limits of the search: shipments placed in all trials; how many count as few; nodes of the exhaustive search for few.
PLACEMENTS = 600
FEW_SHIPMENTS = 8
NODES = 2_000
# Relative: a schedule this close to the bound counts as optimal.
CLOSE = 1e-9

Port = tuple[str, int]


@dataclass(frozen=True)
class Shipment:
    """`seconds` are (host, time with that host as sender). `receivers` are in the order in which they pass data on."""

    seconds: tuple[tuple[int, float], ...]
    receivers: tuple[int, ...]

    def ports(self, sender: int) -> list[Port]:
        into = [("in", host) for host in self.receivers]
        return [("out", sender), *into, *(("out", host) for host in self.receivers[:-1])]


@dataclass(frozen=True)
class Order:
    """Sender and start of each shipment; `order` lists shipments by start."""

    senders: tuple[int, ...]
    starts_s: tuple[float, ...]
    order: tuple[int, ...]
    makespan_s: float


def balance(shipments: Sequence[Shipment], *, seed: int = 0) -> Order:
    """The best schedule found: greedy by several rules, then randomised, then exhaustive if shipments are few."""
    if not shipments:
        return Order((), (), (), 0.0)
    bound = bound_s(shipments)
    best = min((_greedy(shipments, rule, None) for rule in (True, False)), key=lambda order: order.makespan_s)
    rng = random.Random(seed)
    for _ in range(PLACEMENTS // (len(shipments) * max(1, len(shipments) // 16))):
        if best.makespan_s <= bound * (1 + CLOSE):
            return best
        best = min(best, _greedy(shipments, True, rng), key=lambda order: order.makespan_s)
    if len(shipments) <= FEW_SHIPMENTS:
        best = _Search(shipments, best, bound).best
    return best


def bound_s(shipments: Iterable[Shipment]) -> float:
    """A lower bound: no schedule of these shipments ends earlier."""
    classes: defaultdict[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]], float] = defaultdict(float)
    longest = 0.0
    for shipment in shipments:
        least = min(seconds for _, seconds in shipment.seconds)
        longest = max(longest, least)
        # Shipments that differ only in size are one class in the program. Times are relative to the fastest sender's.
        ratios = tuple(round(seconds / least, 12) if least else 1.0 for _, seconds in shipment.seconds)
        classes[tuple(host for host, _ in shipment.seconds), tuple(sorted(shipment.receivers)), ratios] += least
    return max(longest, _fractional(classes)) if classes else 0.0


def _fractional(classes: Mapping[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]], float]) -> float:
    """The least T such that each class is split over its senders and no port is busy for longer than T."""
    ports: dict[Port, int] = {}
    entries: list[tuple[int, int, float]] = []
    whole: list[tuple[int, int]] = []
    column = 1  # column 0 is T
    for index, ((senders, receivers, ratios), seconds) in enumerate(classes.items()):
        for sender, ratio in zip(senders, ratios, strict=True):
            taken = [("out", sender), *(("in", host) for host in receivers)]
            entries += [(ports.setdefault(port, len(ports)), column, seconds * ratio) for port in taken]
            whole.append((index, column))
            column += 1
    rows = [row for row, _, _ in entries] + list(range(len(ports)))
    columns = [at for _, at, _ in entries] + [0] * len(ports)
    values = [value for _, _, value in entries] + [-1.0] * len(ports)
    scale = max(value for _, _, value in entries) or 1.0
    busy = coo_array((np.array(values) / scale, (rows, columns)), shape=(len(ports), column))
    busy.data[len(entries) :] = -1.0
    split = coo_array((np.ones(len(whole)), tuple(zip(*whole, strict=True))), shape=(len(classes), column))
    goal = np.zeros(column)
    goal[0] = 1.0
    solution = linprog(
        goal, A_ub=busy.tocsr(), b_ub=np.zeros(len(ports)), A_eq=split.tocsr(), b_eq=np.ones(len(classes))
    )
    # The solver is accurate to about 1e-7, so round down: a bound must not be too high.
    return float(solution.fun) * scale * (1 - 1e-6) if solution.status == 0 else 0.0


def _greedy(shipments: Sequence[Shipment], urgent_first: bool, rng: random.Random | None) -> Order:
    """Place one shipment after the other: the one that can start earliest; of several, by the work left for its ports.

    Shipments with the same senders and receivers form a line, longest first: only the first of each line is considered.
    """
    lines: defaultdict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    load: defaultdict[Port, float] = defaultdict(float)
    for index, shipment in enumerate(shipments):
        lines[tuple(host for host, _ in shipment.seconds), shipment.receivers].append(index)
        for host in shipment.receivers:
            load["in", host] += shipment.seconds[0][1]
        for host, seconds in shipment.seconds:
            load["out", host] += seconds / len(shipment.seconds)
    for waiting in lines.values():
        waiting.sort(key=lambda index: min(seconds for _, seconds in shipments[index].seconds))
    free: defaultdict[Port, float] = defaultdict(float)
    senders, starts = [0] * len(shipments), [0.0] * len(shipments)
    while lines:
        chosen: tuple[tuple[float, ...], tuple[tuple[int, ...], tuple[int, ...]], int, float] | None = None
        for line, waiting in lines.items():
            shipment = shipments[waiting[-1]]
            ready = max(free["in", host] for host in shipment.receivers)
            pressure = max(load["in", host] for host in shipment.receivers)
            for sender, seconds in shipment.seconds:
                start = max(ready, free["out", sender])
                noise = rng.random() if rng is not None else 0.0
                urgency = (-max(pressure, load["out", sender]) if urgent_first else -seconds) * (1 + noise)
                key = (start, urgency, load["out", sender] * (1 + noise))
                if chosen is None or key < chosen[0]:
                    chosen = key, line, sender, seconds
        assert chosen is not None
        _, line, sender, seconds = chosen
        index = lines[line].pop()
        if not lines[line]:
            del lines[line]
        shipment = shipments[index]
        for host, host_seconds in shipment.seconds:
            load["out", host] -= host_seconds / len(shipment.seconds)
        for host in shipment.receivers:
            load["in", host] -= shipment.seconds[0][1]
        start = max(free[port] for port in shipment.ports(sender))
        for port in shipment.ports(sender):
            free[port] = start + seconds
        senders[index], starts[index] = sender, start
    return _ordered(shipments, senders, starts)


class _Search:
    """Depth-first search over orders and senders, each shipment as early as possible, pruned by a bound on the rest."""

    def __init__(self, shipments: Sequence[Shipment], best: Order, bound: float) -> None:
        self._shipments, self.best, self._bound = shipments, best, bound
        self._nodes = 0
        self._visit({}, defaultdict(float), list(range(len(shipments))))

    def _visit(self, placed: dict[int, tuple[int, float]], free: Mapping[Port, float], left: list[int]) -> None:
        self._nodes += 1
        if not left:
            order = _ordered(
                self._shipments, *zip(*(placed[index] for index in range(len(self._shipments))), strict=True)
            )
            self.best = min(self.best, order, key=lambda candidate: candidate.makespan_s)
            return
        if self._nodes > NODES or self.best.makespan_s <= self._bound * (1 + CLOSE):
            return
        need: defaultdict[int, float] = defaultdict(float)
        for index in left:
            for host in self._shipments[index].receivers:
                need[host] += min(seconds for _, seconds in self._shipments[index].seconds)
        ends = (free.get(("in", host), 0.0) + seconds for host, seconds in need.items())
        if max(ends) >= self.best.makespan_s * (1 - CLOSE):
            return
        for index in left:
            shipment = self._shipments[index]
            for sender, seconds in shipment.seconds:
                start = max(free.get(port, 0.0) for port in shipment.ports(sender))
                if start + seconds >= self.best.makespan_s * (1 - CLOSE):
                    continue
                after = dict(free) | dict.fromkeys(shipment.ports(sender), start + seconds)
                rest = [other for other in left if other != index]
                self._visit(placed | {index: (sender, start)}, after, rest)


def _ordered(shipments: Sequence[Shipment], senders: Sequence[int], starts: Sequence[float]) -> Order:
    ends = (
        start + dict(shipment.seconds)[sender]
        for shipment, sender, start in zip(shipments, senders, starts, strict=True)
    )
    order = sorted(range(len(shipments)), key=lambda index: (starts[index], index))
    return Order(tuple(senders), tuple(starts), tuple(order), max(ends))
