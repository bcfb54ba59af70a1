"""Which gradients to fuse, and by which way each group goes: the fusion of Cupcake (MLSys 2023), solved exactly. Pure.

Times are `timeline`'s. Labels sweep over the tensors. One at e stands for a plan of the first e of them,

    C = C' + b + h    D = max(C, D') + g    M = max(M', D) + d    Q = Q' + b + h + d

and max(M, Q) is to be least at the end. A label that another undercuts in all four can't win. With one way C and Q do
no more than count groups, and labels stay few. With several ways they need not; bounds keep them few.

A plan is as long as the longest of its paths: compute up to the group of some tensor x, the channel from there up to
the group of some z, decompression from there on; or compute and decompression alone. So it is no shorter than any blend
of paths. Let X(e) be the weight of those with x behind e, Z(e) of those with z up to e, K of the last one. The group
(e', e] adds (K + X(e')) (b + h) + (1 - K - X(e) - Z(e')) g + (K + Z(e)) d to a blend, so that the plan which makes it
shortest is a shortest path. A good blend makes even that one long. It bounds all plans, those that go on from a label
(by K Q + X C + (1 - K - X - Z) D + Z M and what is to come), and those that hold a certain group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from thinwire.gradients.timeline import Array, Way, prefix_sums, replay, require_model

Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

# Sums of thousands of seconds agree to about this share of them; labels this close are the same.
ROUNDING = 1e-13
# Plans that are better by less are not looked for.
PROOF = 1e-12
# Tensors whose groups a path may turn at, and paths that bound a label.
TURNS, BLENDS = 64, 8
# By how large a share of the time a path may fall short and still get a fair weight at first.
WARMTH = 0.02
# Groups that are priced in a round of blending, over all its steps; and the most steps, if there are as many tensors.
PRICED, STEPS = 20_000_000, 100
# Labels a state may keep, and the share of the time within which they are alike: first to find good plans, then, ever
# more of them, to prove that there is no better one.
SCOUTS = ((32, 1e-2), (32, 3e-3), (64, 1e-3), (64, 3e-4))
LONE_SCOUTS = ((4, 1e-5),)  # with one way
WIDTH, LONE_WIDTH, WIDENING = 32, 128, 4
# Labels made before several ways are given up as too many to prove. One way is seen through.
LABELS = 10_000_000
# Labels that are ranked, and that are compared with each other, at a time.
AHEAD, BLOCK = 4096, 64


@dataclass(frozen=True)
class Fusion:
    """Group j ends behind tensor number ends[j] and goes by ways[chosen[j]]; no plan saves more than `gap_s`.

    A plan of more than `most_groups` groups is no better, or not allowed: it was `imposed`.
    """

    ends: tuple[int, ...]
    chosen: tuple[int, ...]
    seconds: float
    gap_s: float
    most_groups: int
    imposed: bool


def one_group(num_tensors: int) -> tuple[int, ...]:
    return (num_tensors,)


def layer_wise(num_tensors: int) -> tuple[int, ...]:
    return tuple(range(1, num_tensors + 1))


def equal_counts(num_tensors: int, groups: int) -> tuple[int, ...]:
    """Of so many groups each has as many tensors as any other, or one less."""
    groups = min(groups, num_tensors)
    return tuple(num_tensors * number // groups for number in range(1, groups + 1))


def fuse(
    backward_s: Sequence[float], ways: Sequence[Way], *, most_groups: int | None = None, tolerance: float = 0.0
) -> Fusion:
    """The plan that takes least, or at most a share `tolerance` more: it stops as soon as that is proven."""
    require_model(backward_s, ways)
    if most_groups is not None and most_groups < 1:
        raise ValueError(f"most_groups is {most_groups}; give at least 1, or None for as many as pay")
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}; give a share of the time, 0 or more")
    model = _Model(backward_s, ways)
    best, bound_s = _solve(model, most_groups, tolerance)
    seconds = replay(backward_s, ways, best.ends, best.chosen).seconds
    gap_s = max(0.0, seconds - bound_s) if bound_s < best.seconds * (1 - PROOF) else 0.0
    most = most_groups or model.most_groups(seconds)
    return Fusion(best.ends, best.chosen, seconds, gap_s, most, most_groups is not None)


def _solve(model: "_Model", most: int | None, tolerance: float) -> tuple["_Plan", float]:
    """The best plan that was found, and what none can undercut."""
    groups = _Groups.all(model)
    best = _usual(model, groups, most or model.num_tensors)
    blender = _Blender(groups, best, model.parts_of(best), most)
    bound_s, made = 0.0, 0
    for width, grain in _widths(len(model.ways)):
        groups, best = blender.improve(groups, best)
        bound_s = max(bound_s, min(blender.bound_s, best.seconds))
        if not len(groups.start):
            return best, best.seconds
        if best.seconds - bound_s <= max(tolerance, PROOF) * best.seconds:
            break
        sweep = _sweep(groups, [*blender.chosen(), *blender.corners], best, width, grain, most)
        best = sweep.best
        bound_s = max(bound_s, sweep.bound_s)
        made += sweep.num_labels
        if best.seconds - bound_s <= max(tolerance, PROOF) * best.seconds:
            break
        if len(model.ways) > 1 and grain == ROUNDING and made + WIDENING * sweep.num_labels > LABELS:
            break
    return best, bound_s


def _widths(num_ways: int) -> Iterator[tuple[int, float]]:
    yield from SCOUTS if num_ways > 1 else LONE_SCOUTS
    width = WIDTH if num_ways > 1 else LONE_WIDTH
    while True:
        yield width, ROUNDING
        width *= WIDENING


class _Parts(NamedTuple):
    """Of groups: backward and compression, transfer, decompression."""

    hold_s: Array
    send_s: Array
    finish_s: Array


class _Plan(NamedTuple):
    ends: tuple[int, ...]
    chosen: tuple[int, ...]
    seconds: float


class _Model:
    """What any group costs."""

    def __init__(self, backward_s: Sequence[float], ways: Sequence[Way]) -> None:
        self.num_tensors = len(backward_s)
        self.ways = ways
        self._backward = prefix_sums(backward_s)
        self._compress = np.stack([prefix_sums(way.compress_s) for way in ways])
        self._decompress = np.stack([prefix_sums(way.decompress_s) for way in ways])
        self._nbytes = np.stack([prefix_sums(way.nbytes) for way in ways])
        self._compress_fixed = np.array([way.compress_fixed_s for way in ways])
        self._decompress_fixed = np.array([way.decompress_fixed_s for way in ways])

    def parts(self, start: Ints, end: Ints, way: int) -> _Parts:
        def of(sums: Array) -> Array:
            return sums[end] - sums[start]

        sizes, which = np.unique(of(self._nbytes[way]), return_inverse=True)
        send = np.array([self.ways[way].transfer_s(size) for size in sizes.tolist()], dtype=np.float64)
        if not (send >= 0).all():
            self.ways[way].send_s(float(sizes[~(send >= 0)][0]))  # which says what is wrong
        return _Parts(
            of(self._backward) + (self._compress_fixed[way] + of(self._compress[way])),
            send[which],
            self._decompress_fixed[way] + of(self._decompress[way]),
        )

    def parts_of(self, plan: "_Plan") -> _Parts:
        ends, chosen = np.array(plan.ends), np.array(plan.chosen)
        starts = np.append(0, ends[:-1])
        found = _Parts(*np.zeros((3, len(ends))))
        for way in set(plan.chosen):
            own = np.flatnonzero(chosen == way)
            for part, values in zip(found, self.parts(starts[own], ends[own], way), strict=True):
                part[own] = values
        return found

    def plan(self, ends: tuple[int, ...], way: int) -> _Plan:
        """All by one way."""
        plan = _Plan(ends, (way,) * len(ends), 0.0)
        return plan._replace(seconds=_seconds(self.parts_of(plan)))

    def by_bytes(self, groups: int, way: int) -> tuple[int, ...]:
        sums = self._nbytes[way]
        cuts = np.searchsorted(sums, sums[-1] * np.arange(1, groups) / groups)
        return tuple(np.unique(np.append(cuts.clip(1), self.num_tensors)).tolist())

    def most_groups(self, seconds: float) -> int:
        """y groups take at least what tensors do, by whichever way suits each, and y times what a group does."""
        tensors = np.diff(self._compress + self._decompress).min(axis=0).sum() + self._backward[-1]
        group = float((self._compress_fixed + self._decompress_fixed).min())
        if group <= 0:
            return self.num_tensors
        return int(min(self.num_tensors, max(1.0, (seconds * (1 + PROOF) - tensors) / group)))


def _seconds(parts: _Parts) -> float:
    """R_y, the longest of all paths."""
    if not np.isfinite(parts.send_s).all():
        return np.inf
    compute, before, behind = _paths(parts)
    return max(compute, float((np.maximum.accumulate(before) + behind).max()))


def _paths(parts: _Parts) -> tuple[float, Array, Array]:
    """The path of compute and decompression alone; and two terms for each group. A path that enters the channel with
    one group and leaves it with another is as long as the first term of the one and the second of the other.
    """
    ready, sent = np.cumsum(parts.hold_s), np.cumsum(parts.send_s)
    left = np.cumsum(parts.finish_s[::-1])[::-1]
    return float(ready[-1] + left[0]), ready - (sent - parts.send_s), sent + left


@dataclass(frozen=True)
class _Groups:
    """Those that a better plan may hold, by start, then end; `first` tells where those of a start begin."""

    start: Ints
    end: Ints
    way: Ints
    parts: _Parts
    first: list[int]

    @staticmethod
    def all(model: _Model) -> "_Groups":
        start, end = (each.astype(np.int32) for each in np.triu_indices(model.num_tensors + 1, 1))
        # A group that is beaten in every part by the same tensors going another way is in no better plan.
        every = [model.parts(start, end, way) for way in range(len(model.ways))]
        kept = [np.flatnonzero(np.isfinite(own.send_s) & ~_beaten(every, way)) for way, own in enumerate(every)]
        at = np.concatenate(kept)
        order = np.argsort(at, kind="stable")
        parts = (np.concatenate([own[part][rows] for own, rows in zip(every, kept, strict=True)]) for part in range(3))
        way = np.repeat(np.arange(len(every), dtype=np.int32), [len(rows) for rows in kept])
        start, end = start[at[order]], end[at[order]]
        first = np.searchsorted(start, np.arange(model.num_tensors + 2)).tolist()
        return _Groups(start, end, way[order], _Parts(*(part[order] for part in parts)), first)

    @property
    def num_tensors(self) -> int:
        return len(self.first) - 2

    def only(self, kept: Ints) -> "_Groups":
        start = self.start[kept]
        parts = _Parts(*(part[kept] for part in self.parts))
        first = np.searchsorted(start, np.arange(len(self.first))).tolist()
        return _Groups(start, self.end[kept], self.way[kept], parts, first)

    def cheapest(self, cost: Array, at_end: float = 0.0) -> tuple[Array, Ints]:
        """The least that groups from each tensor to the end add up to, and the first of them."""
        to_go = np.full(self.num_tensors + 1, np.inf)
        to_go[-1] = at_end
        choice = np.zeros(self.num_tensors, dtype=np.int64)
        for start in reversed(range(self.num_tensors)):
            own = slice(self.first[start], self.first[start + 1])
            if own.start < own.stop:
                total = cost[own] + to_go[self.end[own]]
                at = int(total.argmin())
                to_go[start], choice[start] = total[at], own.start + at
        return to_go, choice

    def reached(self, cost: Array) -> Array:
        """The least that groups from the start up to each tensor add up to."""
        ends = np.flatnonzero(np.diff(self.end, prepend=-1) | np.diff(self.start, prepend=-1))
        least, end = np.minimum.reduceat(cost, ends), self.end[ends]
        first = np.searchsorted(self.start[ends], np.arange(len(self.first))).tolist()
        so_far = np.full(self.num_tensors + 1, np.inf)
        so_far[0] = 0.0
        for start in range(self.num_tensors):
            own = slice(first[start], first[start + 1])
            so_far[end[own]] = np.minimum(so_far[end[own]], so_far[start] + least[own])
        return so_far

    def along(self, choice: Ints) -> Ints:
        found, at = [], 0
        while at < self.num_tensors:
            found.append(int(choice[at]))
            at = int(self.end[found[-1]])
        return np.array(found)

    def plan(self, rows: Ints) -> _Plan:
        parts = _Parts(*(part[rows] for part in self.parts))
        return _Plan(tuple(self.end[rows].tolist()), tuple(self.way[rows].tolist()), _seconds(parts))


def _beaten(every: Sequence[_Parts], way: int) -> Flags:
    """Groups for which another way takes no longer in any part: of equals the first stays."""
    found = np.zeros(len(every[way].send_s), dtype=bool)
    for other, theirs in enumerate(every):
        if other != way:
            no_longer = np.ones_like(found)
            shorter = np.full_like(found, other < way)
            for part, own in zip(theirs, every[way], strict=True):
                no_longer &= part <= own
                shorter |= part < own
            found |= no_longer & shorter
    return found


def _usual(model: _Model, groups: _Groups, most: int) -> _Plan:
    """The best of the plans that anyone would try, and of fewest groups."""
    to_go, choice = groups.cheapest(np.ones(len(groups.start)))
    if to_go[0] > most:
        least = "no number of groups is enough" if np.isinf(to_go[0]) else f"it takes {to_go[0]:.0f} groups"
        raise ValueError(f"no plan of at most {most} groups is finite: transfer_s is infinite for many sizes, {least}")
    plans = [groups.plan(groups.along(choice))]
    n = model.num_tensors
    counts = [1 << power for power in range(n.bit_length())]
    for way in range(len(model.ways)):
        ends = {layer_wise(n), *(equal_counts(n, count) for count in counts)}
        ends |= {model.by_bytes(count, way) for count in counts}
        plans += [model.plan(each, way) for each in sorted(ends) if len(each) <= most]
    return min(plans, key=lambda plan: (plan.seconds, len(plan.ends)))


@dataclass(frozen=True)
class _Blend:
    """Weights of paths: K, X, Z; the price of a group, where their number is limited; what there is to go."""

    compute: float
    later: Array
    earlier: Array
    price: float
    to_go: Array

    def cost(self, groups: _Groups) -> Array:
        hold, send, finish = groups.parts
        cost = (self.compute + self.later)[groups.start] * hold
        cost += ((1 - self.compute - self.later)[groups.end] - self.earlier[groups.start]) * send
        cost += (self.compute + self.earlier)[groups.end] * finish
        return cost + self.price

    def weights(self) -> Array:
        """Of C, D, M, Q and the number of groups, at each tensor."""
        same = np.ones(len(self.later))
        on_channel = 1 - self.compute - self.later - self.earlier
        return np.stack((self.later, on_channel, self.earlier, self.compute * same, self.price * same), axis=1)


class _Blender:
    """Shifts weight to the paths on which the plan that suits it best is long."""

    def __init__(self, groups: _Groups, best: _Plan, parts: _Parts, most: int | None) -> None:
        self._most = most
        n = groups.num_tensors
        self._turns = np.unique(np.linspace(1, n, min(n, TURNS)).round().astype(np.int64))
        self._allowed = np.triu(np.ones((len(self._turns), len(self._turns)), dtype=bool))
        # Much weight for paths that are long in a plan that is good already.
        compute, lengths = self._lengths(parts, np.array(best.ends))
        warmth = WARMTH * best.seconds or 1.0
        self._weights = np.where(self._allowed, np.exp((lengths - best.seconds) / warmth), 0.0) / len(self._turns)
        self._compute = float(np.exp((compute - best.seconds) / warmth))
        self._normalise()
        self._price = 0.0
        self._stride, self._stalled = 1.0, 0
        self.corners = _corners(groups)
        self._blends = self.corners[:1]
        self.bound_s = max(float(blend.to_go[0]) for blend in self.corners)

    def chosen(self) -> list[_Blend]:
        """Good ones, and unlike each other."""
        ranked = sorted(self._blends, key=lambda blend: -blend.to_go[0])
        return [ranked[at] for at in np.unique(np.linspace(0, len(ranked) - 1, BLENDS).astype(int))]

    def improve(self, groups: _Groups, best: _Plan) -> tuple[_Groups, _Plan]:
        for blend in self.corners:
            groups = _without_worse(groups, blend, best)
            if not len(groups.start):
                return groups, best
        for step in range(min(max(PRICED // len(groups.start), 10), groups.num_tensors, STEPS)):
            blend, choice = self._blend(groups)
            length = float(blend.to_go[0])
            if np.isinf(length):  # what is left of the groups makes no plan
                return groups.only(np.zeros(0, dtype=np.int64)), best
            rows = groups.along(choice)
            found = groups.plan(rows)
            if found.seconds < best.seconds and (self._most is None or len(rows) <= self._most):
                best = found
            if length > self.bound_s:
                self.bound_s, self._stalled = length, 0
            else:
                self._stalled += 1
                if self._stalled == 10:
                    self._stride, self._stalled = 0.7 * self._stride, 0
            if length > self.bound_s - 0.1 * (best.seconds - self.bound_s):
                self._blends.append(blend)
            self._shift(_Parts(*(part[rows] for part in groups.parts)), groups.end[rows], best.seconds, length)
            if step % 10 == 9:
                groups = _without_worse(groups, blend, best)
                if not len(groups.start):
                    break
        return groups, best

    def _blend(self, groups: _Groups) -> tuple[_Blend, Ints]:
        n = groups.num_tensors
        later, earlier = np.zeros(n + 1), np.zeros(n + 1)
        later[self._turns - 1] = self._weights.sum(axis=1)
        earlier[self._turns] = self._weights.sum(axis=0)
        blend = _Blend(self._compute, np.cumsum(later[::-1])[::-1], np.cumsum(earlier), self._price, later)
        to_go, choice = groups.cheapest(blend.cost(groups), -self._price * (self._most or 0))
        return replace(blend, to_go=to_go), choice

    def _shift(self, parts: _Parts, ends: Ints, best_s: float, length: float) -> None:
        """A step by the rule of Polyak, with weights multiplied."""
        compute, lengths = self._lengths(parts, ends)
        excess, alone = np.where(self._allowed, lengths - length, 0.0), compute - length
        spread = float((self._weights * excess**2).sum() + self._compute * alone**2)
        largest = max(float(np.abs(excess).max()), abs(alone))
        if largest <= 0:
            return
        missing = self._stride * max(best_s - length, PROOF * best_s)
        stride = min(missing / max(spread, 1e-12 * largest**2), 3 / largest)
        self._weights *= np.exp(stride * excess)
        self._compute *= float(np.exp(stride * alone))
        self._normalise()
        if self._most is not None:
            surplus = len(ends) - self._most
            self._price = max(0.0, self._price + missing * surplus / (1 + surplus**2))

    def _lengths(self, parts: _Parts, ends: Ints) -> tuple[float, Array]:
        """Of the path of compute alone, and of those with x and z at each two turns."""
        compute, before, behind = _paths(parts)
        at = np.searchsorted(ends, self._turns)
        return compute, before[at][:, None] + behind[at]

    def _normalise(self) -> None:
        """No weight vanishes for good: what is multiplied could never come back."""
        total = float(self._weights.sum()) + self._compute
        self._weights = np.where(self._allowed, np.maximum(self._weights / total, 1e-30), 0.0)
        self._compute = max(self._compute / total, 1e-30)


def _without_worse(groups: _Groups, blend: _Blend, best: _Plan) -> _Groups:
    """Less those with which the blend is too long already."""
    cost = blend.cost(groups)
    least = blend.to_go[groups.end] + cost
    least += groups.reached(cost)[groups.start]
    kept = np.flatnonzero(least < best.seconds * (1 - PROOF))
    return groups.only(kept) if len(kept) < 0.9 * len(least) or not len(kept) else groups


class _Sweep(NamedTuple):
    """The best plan so far, what none can undercut, and the labels that were made."""

    best: _Plan
    bound_s: float
    num_labels: int


def _sweep(
    groups: _Groups, blends: Sequence[_Blend], best: _Plan, width: int, grain: float, most: int | None
) -> _Sweep:
    """One pass over the tensors, with at most `width` labels at each; those within a share `grain` are alike."""
    n = groups.num_tensors
    weights = np.stack([blend.weights() for blend in blends])
    to_go = np.stack([blend.to_go for blend in blends])
    compute_to_go = groups.cheapest(groups.parts.hold_s)[0]
    soonest = np.full(n + 1, np.inf)
    np.minimum.at(soonest, groups.start, groups.parts.hold_s)
    order = np.argsort(groups.end, kind="stable")
    start = groups.start[order]
    first = np.searchsorted(groups.end[order], np.arange(n + 2)).tolist()
    one_way = not (groups.way != groups.way[0]).any()
    labels = _Labels(n)
    limit = best.seconds * (1 - PROOF)
    dropped, made = np.inf, 0
    for end in range(1, n + 1):
        if not np.isfinite(compute_to_go[end]):
            continue
        own = slice(first[end], first[end + 1])
        values, source, group = labels.extended(groups, order[own], start[own])
        made += len(source)
        if end == n:
            if most is not None:
                values = np.where(values[4] <= most, values, np.inf)
            lengths = np.maximum(values[2], values[3])
            if len(lengths) and lengths.min() < limit:
                at = int(lengths.argmin())
                best = groups.plan(labels.along(int(source[at]), int(group[at])))
            break
        # Nothing is sent before it is compressed, nothing decompressed before all compute is over: to be ready sooner
        # is no merit.
        values[1] = np.maximum(values[1], values[0] + soonest[end])
        values[2] = np.maximum(values[2], values[3] + compute_to_go[end])
        rows = np.arange(len(source)) if most is None else np.flatnonzero(values[4] < most)
        least = np.full(len(rows), -np.inf)
        for some in (slice(0, 3), slice(3, None)):  # the first see most of them off
            bounds = weights[some, end] @ values[:, rows] + to_go[some, end, None]
            least = np.maximum(least, bounds.max(axis=0))
            rows, least = rows[least < limit], least[least < limit]
        rounded = np.round(values[: 4 + (most is not None), rows] / (grain * best.seconds))
        if one_way:
            front = _front(rounded)
            rows, least, rounded = rows[front], least[front], rounded[:, front]
        kept, rest = _kept(rounded, least, width)
        rows = rows[kept]
        dropped = min(dropped, rest)
        labels.add(end, values[:, rows], source[rows], group[rows])
    # A label that went because another was merely like it has no bound here.
    return _Sweep(best, min(dropped, best.seconds) if grain == ROUNDING else 0.0, made)


def _corners(groups: _Groups) -> list[_Blend]:
    """All weight on one path: compute alone; the channel from the first group to the last; the last group alone; what
    is left of decompression."""
    n = groups.num_tensors
    none, first, last = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    first[0] = last[-1] = 1.0
    found = []
    for compute, later, earlier in (
        (1.0, none, none),
        (0.0, first, last),
        (0.0, 1 - last, last),
        (0.0, none, 1 + none),
    ):
        blend = _Blend(compute, later, earlier, 0.0, none)
        found.append(replace(blend, to_go=groups.cheapest(blend.cost(groups))[0]))
    return found


class _Labels:
    """C, D, M, Q and the number of groups; the label that one goes on from, and the group it adds."""

    def __init__(self, num_tensors: int) -> None:
        self._values = np.zeros((5, 4096))
        self._source = np.full(4096, -1)
        self._group = np.full(4096, -1)
        self._begin = np.zeros(num_tensors + 1, dtype=np.int64)
        self._count = np.zeros(num_tensors + 1, dtype=np.int64)
        self._count[0] = self._num = 1

    def extended(self, groups: _Groups, rows: Ints, start: Ints) -> tuple[Array, Ints, Ints]:
        counts = self._count[start]
        group = np.repeat(rows, counts)
        source = np.repeat(self._begin[start] - (np.cumsum(counts) - counts), counts) + np.arange(len(group))
        values = self._values[:, source]
        hold, send, finish = (part[group] for part in groups.parts)
        values[0] += hold
        values[1] = np.maximum(values[0], values[1]) + send
        values[2] = np.maximum(values[1], values[2]) + finish
        values[3] += hold + finish
        values[4] += 1
        return values, source, group

    def add(self, end: int, values: Array, source: Ints, group: Ints) -> None:
        count = values.shape[1]
        while self._num + count > len(self._source):
            self._values = np.concatenate((self._values, self._values), axis=1)
            self._source, self._group = np.tile(self._source, 2), np.tile(self._group, 2)
        own = slice(self._num, self._num + count)
        self._values[:, own], self._source[own], self._group[own] = values, source, group
        self._begin[end], self._count[end] = self._num, count
        self._num += count

    def along(self, label: int, group: int) -> Ints:
        found = [group]
        while label > 0:
            found.append(int(self._group[label]))
            label = int(self._source[label])
        return np.array(found[::-1])


def _front(values: Array) -> Ints:
    """With one way Q and the number of groups tell C: among equals of these, those that none undercuts in D and M."""
    order = np.lexsort((values[2], values[1], values[-1]))
    same = np.cumsum(np.diff(values[-1, order], prepend=values[-1, order[:1]]) != 0)
    lowest = values[2, order].astype(np.int64) - (same << 44)  # so that M counts among equals alone
    return order[np.diff(np.minimum.accumulate(lowest), prepend=1 << 44) < 0]


def _kept(values: Array, least: Array, width: int) -> tuple[Ints, float]:
    """At most so many that no other undercuts, by rising bounds; and the least bound of those that had to go.

    Who is undercut has no lower bound than who undercuts, so that it comes later.
    """
    found, left = np.zeros(0, dtype=np.int64), np.arange(len(least))
    ahead = found
    while len(found) < width and len(left):
        ranked = np.argpartition(least[left], AHEAD) if len(left) > AHEAD else np.arange(len(left))
        ahead, left = left[ranked[:AHEAD]], left[ranked[AHEAD:]]
        ahead = ahead[np.lexsort((values[:, ahead].sum(axis=0), least[ahead]))]
        ahead = ahead[~_undercut(values[:, ahead], values[:, found])]
        while len(found) < width and len(ahead):
            tried, ahead = ahead[:BLOCK], ahead[BLOCK:]
            new = tried[~np.triu(_undercuts(values[:, tried], values[:, tried]), 1).any(axis=0)]
            ahead = ahead[~_undercut(values[:, ahead], values[:, new])]
            found = np.concatenate((found, new))
        left = left[~_undercut(values[:, left], values[:, found[:BLOCK]])]
    rest = np.concatenate((found[width:], ahead, left))
    return found[:width], float(least[rest].min()) if len(rest) else np.inf


def _undercut(values: Array, others: Array) -> Flags:
    return np.any(_undercuts(others, values), axis=0)


def _undercuts(some: Array, others: Array) -> Flags:
    found = np.ones((some.shape[1], others.shape[1]), dtype=bool)
    for one, other in zip(some, others, strict=True):
        found &= one[:, None] <= other
    return found
