"""All groups that a plan could hold, what each of them costs, and shortest paths over them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from thinwire.gradients.timeline import Array, Route, prefix_sums

Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

# Sums of thousands of times agree to about this share of them. Labels that differ by less are the same.
ROUNDING = 1e-13
# Plans that are better by a smaller share than this are not searched for.
PROOF = 1e-12


def one_group(num_tensors: int) -> tuple[int, ...]:
    return (num_tensors,)


def layer_wise(num_tensors: int) -> tuple[int, ...]:
    return tuple(range(1, num_tensors + 1))


def equal_counts(num_tensors: int, groups: int) -> tuple[int, ...]:
    """The ends of `groups` groups whose numbers of tensors differ by one at most."""
    groups = min(groups, num_tensors)
    return tuple(num_tensors * number // groups for number in range(1, groups + 1))


class GroupCosts(NamedTuple):
    """Each group's seconds: backward and compression, transfer, decompression."""

    hold_s: Array
    send_s: Array
    finish_s: Array


class Grouping(NamedTuple):
    ends: tuple[int, ...]
    chosen: tuple[int, ...]
    seconds: float


class Model:
    """What a group of any consecutive tensors costs."""

    def __init__(self, backward_s: Sequence[float], routes: Sequence[Route]) -> None:
        self.num_tensors = len(backward_s)
        self.routes = routes
        self._backward = prefix_sums(backward_s)
        self._compress = np.stack([prefix_sums(route.compress_s) for route in routes])
        self._decompress = np.stack([prefix_sums(route.decompress_s) for route in routes])
        self._nbytes = np.stack([prefix_sums(route.nbytes) for route in routes])
        self._compress_fixed = np.array([route.compress_fixed_s for route in routes])
        self._decompress_fixed = np.array([route.decompress_fixed_s for route in routes])

    def parts(self, start: Ints, end: Ints, route: int) -> GroupCosts:
        def of(sums: Array) -> Array:
            return sums[end] - sums[start]

        sizes, which = np.unique(of(self._nbytes[route]), return_inverse=True)
        send = np.array([self.routes[route].transfer_s(size) for size in sizes.tolist()], dtype=np.float64)
        if not (send >= 0).all():
            self.routes[route].send_s(float(sizes[~(send >= 0)][0]))  # raises an error that says what is wrong
        return GroupCosts(
            of(self._backward) + (self._compress_fixed[route] + of(self._compress[route])),
            send[which],
            self._decompress_fixed[route] + of(self._decompress[route]),
        )

    def parts_of(self, plan: Grouping) -> GroupCosts:
        ends, chosen = np.array(plan.ends), np.array(plan.chosen)
        starts = np.append(0, ends[:-1])
        costs = GroupCosts(*np.zeros((3, len(ends))))
        for route in set(plan.chosen):
            rows = np.flatnonzero(chosen == route)
            for part, values in zip(costs, self.parts(starts[rows], ends[rows], route), strict=True):
                part[rows] = values
        return costs

    def plan(self, ends: tuple[int, ...], route: int) -> Grouping:
        """The grouping with these ends and one route for all groups."""
        plan = Grouping(ends, (route,) * len(ends), 0.0)
        return plan._replace(seconds=seconds_of(self.parts_of(plan)))

    def by_bytes(self, groups: int, route: int) -> tuple[int, ...]:
        """The ends of at most `groups` groups of about the same number of bytes."""
        sums = self._nbytes[route]
        cuts = np.searchsorted(sums, sums[-1] * np.arange(1, groups) / groups)
        return tuple(np.unique(np.append(cuts.clip(1), self.num_tensors)).tolist())

    def most_groups(self, seconds: float) -> int:
        """No plan of more groups than this can take `seconds` or less.

        y groups take at least the cost of all tensors, each by its cheapest route, and y times the fixed cost of a
        group.
        """
        tensors = np.diff(self._compress + self._decompress).min(axis=0).sum() + self._backward[-1]
        group = float((self._compress_fixed + self._decompress_fixed).min())
        if group <= 0:
            return self.num_tensors
        return int(min(self.num_tensors, max(1.0, (seconds * (1 + PROOF) - tensors) / group)))


def seconds_of(parts: GroupCosts) -> float:
    """R_y, the longest of all paths."""
    if not np.isfinite(parts.send_s).all():
        return np.inf
    compute, before, behind = paths(parts)
    return max(compute, float((np.maximum.accumulate(before) + behind).max()))


def paths(parts: GroupCosts) -> tuple[float, Array, Array]:
    """The length of the path of compute and decompression alone, and two terms for each group.

    A path that enters the channel with group i and leaves it with group j is as long as the first term of i plus the
    second term of j.
    """
    ready, sent = np.cumsum(parts.hold_s), np.cumsum(parts.send_s)
    left = np.cumsum(parts.finish_s[::-1])[::-1]
    return float(ready[-1] + left[0]), ready - (sent - parts.send_s), sent + left


@dataclass(frozen=True)
class Groups:
    """The groups that a better plan may hold, sorted by start, then end. Those with start s begin at `first[s]`."""

    start: Ints
    end: Ints
    route: Ints
    parts: GroupCosts
    first: list[int]

    @staticmethod
    def all(model: Model) -> "Groups":
        start, end = (bounds.astype(np.int32) for bounds in np.triu_indices(model.num_tensors + 1, 1))
        # A group that costs no less in any part than the same tensors by another route is in no better plan.
        by_route = [model.parts(start, end, route) for route in range(len(model.routes))]
        kept = [
            np.flatnonzero(np.isfinite(costs.send_s) & ~_beaten(by_route, route))
            for route, costs in enumerate(by_route)
        ]
        at = np.concatenate(kept)
        order = np.argsort(at, kind="stable")
        parts = (
            np.concatenate([costs[part][rows] for costs, rows in zip(by_route, kept, strict=True)]) for part in range(3)
        )
        route = np.repeat(np.arange(len(by_route), dtype=np.int32), [len(rows) for rows in kept])
        start, end = start[at[order]], end[at[order]]
        first = np.searchsorted(start, np.arange(model.num_tensors + 2)).tolist()
        return Groups(start, end, route[order], GroupCosts(*(part[order] for part in parts)), first)

    @property
    def num_tensors(self) -> int:
        return len(self.first) - 2

    def only(self, kept: Ints) -> "Groups":
        start = self.start[kept]
        parts = GroupCosts(*(part[kept] for part in self.parts))
        first = np.searchsorted(start, np.arange(len(self.first))).tolist()
        return Groups(start, self.end[kept], self.route[kept], parts, first)

    def cheapest(self, cost: Array, at_end: float = 0.0) -> tuple[Array, Ints]:
        """The least total cost of groups from each tensor to the end, and the first of these groups."""
        to_go = np.full(self.num_tensors + 1, np.inf)
        to_go[-1] = at_end
        choice = np.zeros(self.num_tensors, dtype=np.int64)
        for start in reversed(range(self.num_tensors)):
            rows = slice(self.first[start], self.first[start + 1])
            if rows.start < rows.stop:
                total = cost[rows] + to_go[self.end[rows]]
                at = int(total.argmin())
                to_go[start], choice[start] = total[at], rows.start + at
        return to_go, choice

    def reached(self, cost: Array) -> Array:
        """The least total cost of groups from the start up to each tensor."""
        ends = np.flatnonzero(np.diff(self.end, prepend=-1) | np.diff(self.start, prepend=-1))
        least, end = np.minimum.reduceat(cost, ends), self.end[ends]
        first = np.searchsorted(self.start[ends], np.arange(len(self.first))).tolist()
        so_far = np.full(self.num_tensors + 1, np.inf)
        so_far[0] = 0.0
        for start in range(self.num_tensors):
            rows = slice(first[start], first[start + 1])
            so_far[end[rows]] = np.minimum(so_far[end[rows]], so_far[start] + least[rows])
        return so_far

    def along(self, choice: Ints) -> Ints:
        """The groups of the plan that follows these choices from the first tensor on."""
        rows, at = [], 0
        while at < self.num_tensors:
            rows.append(int(choice[at]))
            at = int(self.end[rows[-1]])
        return np.array(rows)

    def plan(self, rows: Ints) -> Grouping:
        parts = GroupCosts(*(part[rows] for part in self.parts))
        return Grouping(tuple(self.end[rows].tolist()), tuple(self.route[rows].tolist()), seconds_of(parts))


def _beaten(by_route: Sequence[GroupCosts], route: int) -> Flags:
    """Groups for which another route takes no longer in any part. Of equal routes the first stays."""
    beaten = np.zeros(len(by_route[route].send_s), dtype=bool)
    for other, costs in enumerate(by_route):
        if other != route:
            no_longer = np.ones_like(beaten)
            shorter = np.full_like(beaten, other < route)
            for part, part_here in zip(costs, by_route[route], strict=True):
                no_longer &= part <= part_here
                shorter |= part < part_here
            beaten |= no_longer & shorter
    return beaten


def best_usual(model: Model, groups: Groups, most: int) -> Grouping:
    """The best of the plans that anyone would try and the plan of fewest groups."""
    to_go, choice = groups.cheapest(np.ones(len(groups.start)))
    if to_go[0] > most:
        least = "no number of groups is enough" if np.isinf(to_go[0]) else f"it takes {to_go[0]:.0f} groups"
        raise ValueError(f"no plan of at most {most} groups is finite: transfer_s is infinite for many sizes, {least}")
    plans = [groups.plan(groups.along(choice))]
    n = model.num_tensors
    counts = [1 << power for power in range(n.bit_length())]
    for route in range(len(model.routes)):
        ends = {layer_wise(n), *(equal_counts(n, count) for count in counts)}
        ends |= {model.by_bytes(count, route) for count in counts}
        plans += [model.plan(plan_ends, route) for plan_ends in sorted(ends) if len(plan_ends) <= most]
    return min(plans, key=lambda plan: (plan.seconds, len(plan.ends)))
