"""Lower bounds for plans: blends of critical paths.

A plan takes as long as the longest of its paths. A path is compute up to the group of some tensor x, the channel from
there up to the group of some tensor z, and decompression from there on; or it is compute and decompression alone. So a
plan is no shorter than any blend, which is a weighted mean of paths. Let X(e) be the weight of the paths with x behind
e, Z(e) of those with z up to e, and K of compute and decompression alone. The group (e', e] adds

    (K + X(e')) (b + h) + (1 - K - X(e) - Z(e')) g + (K + Z(e)) d

to the blend, so the plan for which a blend is shortest is a shortest path over groups. A good blend is long even for
that plan. It bounds all plans, the plans that extend a label, and the plans that hold a certain group. Pure.
"""

from dataclasses import dataclass, replace

import numpy as np

from thinwire.gradients.groupings import PROOF, GroupCosts, Grouping, Groups, Ints, paths
from thinwire.gradients.timeline import Array

# Tensors at whose groups a path may turn (x and z), and blends that bound a label.
TURNS, BLENDS = 64, 8
# A path that is shorter than the best plan by this share of its time starts with a weight smaller by a factor of e.
WARMTH = 0.02
# Groups that are priced in all steps of one round of blending; and the most steps of a round,
# which has no more steps than there are tensors.
PRICED, STEPS = 20_000_000, 100


@dataclass(frozen=True)
class Blend:
    """Weights of paths: K, X and Z.

    `price` is what each group costs in addition where their number is limited. `to_go` is the least that the groups
    from each tensor to the end add to the blend.
    """

    compute: float
    later: Array
    earlier: Array
    price: float
    to_go: Array

    def cost(self, groups: Groups) -> Array:
        """What each group adds to the blend."""
        hold, send, finish = groups.parts
        cost = (self.compute + self.later)[groups.start] * hold
        cost += ((1 - self.compute - self.later)[groups.end] - self.earlier[groups.start]) * send
        cost += (self.compute + self.earlier)[groups.end] * finish
        return cost + self.price

    def weights(self) -> Array:
        """The weights of C, D, M, Q and the number of groups, one row for each tensor."""
        same = np.ones(len(self.later))
        on_channel = 1 - self.compute - self.later - self.earlier
        return np.stack((self.later, on_channel, self.earlier, self.compute * same, self.price * same), axis=1)


class Blender:
    """Improves a blend: shifts weight to the paths that are long in the plan for which the blend is shortest."""

    def __init__(self, groups: Groups, best: Grouping, parts: GroupCosts, most: int | None) -> None:
        self._most = most
        n = groups.num_tensors
        self._turns = np.unique(np.linspace(1, n, min(n, TURNS)).round().astype(np.int64))
        self._allowed = np.triu(np.ones((len(self._turns), len(self._turns)), dtype=bool))
        # At first much weight lies on the paths that are long in a plan that is already good.
        compute, lengths = self._lengths(parts, np.array(best.ends))
        warmth = WARMTH * best.seconds or 1.0
        self._weights = np.where(self._allowed, np.exp((lengths - best.seconds) / warmth), 0.0) / len(self._turns)
        self._compute = float(np.exp((compute - best.seconds) / warmth))
        self._normalise()
        self._price = 0.0
        self._stride, self._stalled = 1.0, 0
        self.corners = corners_of(groups)
        self._blends = self.corners[:1]
        self.bound_s = max(float(blend.to_go[0]) for blend in self.corners)

    def chosen(self) -> list[Blend]:
        """A few of the blends with high bounds, evenly spread over the ranking so that they differ."""
        ranked = sorted(self._blends, key=lambda blend: -blend.to_go[0])
        return [ranked[index] for index in np.unique(np.linspace(0, len(ranked) - 1, BLENDS).astype(int))]

    def improve(self, groups: Groups, best: Grouping) -> tuple[Groups, Grouping]:
        """One round of blending: the groups that a better plan may still hold, and the best plan so far."""
        for blend in self.corners:
            groups = _without_worse(groups, blend, best)
            if not len(groups.start):
                return groups, best
        for step in range(min(max(PRICED // len(groups.start), 10), groups.num_tensors, STEPS)):
            blend, choice = self._blend(groups)
            length = float(blend.to_go[0])
            if np.isinf(length):  # the remaining groups make no plan
                return groups.only(np.zeros(0, dtype=np.int64)), best
            rows = groups.along(choice)
            plan = groups.plan(rows)
            if plan.seconds < best.seconds and (self._most is None or len(rows) <= self._most):
                best = plan
            if length > self.bound_s:
                self.bound_s, self._stalled = length, 0
            else:
                self._stalled += 1
                if self._stalled == 10:
                    self._stride, self._stalled = 0.7 * self._stride, 0
            if length > self.bound_s - 0.1 * (best.seconds - self.bound_s):
                self._blends.append(blend)
            self._shift(GroupCosts(*(part[rows] for part in groups.parts)), groups.end[rows], best.seconds, length)
            if step % 10 == 9:
                groups = _without_worse(groups, blend, best)
                if not len(groups.start):
                    break
        return groups, best

    def _blend(self, groups: Groups) -> tuple[Blend, Ints]:
        """The blend of the current weights, and the choices of the plan for which it is shortest."""
        n = groups.num_tensors
        later, earlier = np.zeros(n + 1), np.zeros(n + 1)
        later[self._turns - 1] = self._weights.sum(axis=1)
        earlier[self._turns] = self._weights.sum(axis=0)
        blend = Blend(self._compute, np.cumsum(later[::-1])[::-1], np.cumsum(earlier), self._price, later)
        to_go, choice = groups.cheapest(blend.cost(groups), -self._price * (self._most or 0))
        return replace(blend, to_go=to_go), choice

    def _shift(self, parts: GroupCosts, ends: Ints, best_s: float, length: float) -> None:
        """One step of Polyak's length, by which weights are multiplied."""
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

    def _lengths(self, parts: GroupCosts, ends: Ints) -> tuple[float, Array]:
        """The length of compute and decompression alone, and of the paths that turn at x and z, for every such pair."""
        compute, before, behind = paths(parts)
        at = np.searchsorted(ends, self._turns)
        return compute, before[at][:, None] + behind[at]

    def _normalise(self) -> None:
        """Weights of sum 1, none quite zero: weights are only ever multiplied, and zero would stay zero."""
        total = float(self._weights.sum()) + self._compute
        self._weights = np.where(self._allowed, np.maximum(self._weights / total, 1e-30), 0.0)
        self._compute = max(self._compute / total, 1e-30)


def _without_worse(groups: Groups, blend: Blend, best: Grouping) -> Groups:
    """The groups without those that already make the blend as long as the best plan."""
    cost = blend.cost(groups)
    least = blend.to_go[groups.end] + cost
    least += groups.reached(cost)[groups.start]
    kept = np.flatnonzero(least < best.seconds * (1 - PROOF))
    return groups.only(kept) if len(kept) < 0.9 * len(least) or not len(kept) else groups


def corners_of(groups: Groups) -> list[Blend]:
    """Blends with all weight on one path: compute and decompression alone; the channel from the first group to the
    last; compute, then the channel for the last group alone; decompression alone.
    """
    n = groups.num_tensors
    none, first, last = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    first[0] = last[-1] = 1.0
    blends = []
    for compute, later, earlier in (
        (1.0, none, none),
        (0.0, first, last),
        (0.0, 1 - last, last),
        (0.0, none, 1 + none),
    ):
        blend = Blend(compute, later, earlier, 0.0, none)
        blends.append(replace(blend, to_go=groups.cheapest(blend.cost(groups))[0]))
    return blends
