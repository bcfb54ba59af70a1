"""Labels are plans for the first tensors; a sweep extends them tensor by tensor to whole plans. Pure.

One label undercuts another if it is no larger in every value. A label that another one undercuts can't win.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thinwire.gradients.blends import Blend
from thinwire.gradients.groupings import PROOF, ROUNDING, Flags, Grouping, Groups, Ints
from thinwire.gradients.timeline import Array

# Labels that are ranked in one go, and labels that are compared with each other in one go.
AHEAD, BLOCK = 4096, 64


class Sweep(NamedTuple):
    """The best plan so far, a lower bound for all plans, and the number of labels that were made."""

    best: Grouping
    bound_s: float
    num_labels: int


def sweep_labels(
    groups: Groups, blends: Sequence[Blend], best: Grouping, width: int, grain: float, most: int | None
) -> Sweep:
    """One pass over the tensors, with at most `width` labels at each.

    Labels whose values differ by less than a share `grain` of the best plan's time count as equal.
    """
    n = groups.num_tensors
    weights = np.stack([blend.weights() for blend in blends])
    to_go = np.stack([blend.to_go for blend in blends])
    compute_to_go = groups.cheapest(groups.parts.hold_s)[0]
    soonest = np.full(n + 1, np.inf)
    np.minimum.at(soonest, groups.start, groups.parts.hold_s)
    order = np.argsort(groups.end, kind="stable")
    start = groups.start[order]
    first = np.searchsorted(groups.end[order], np.arange(n + 2)).tolist()
    one_route = not (groups.route != groups.route[0]).any()
    labels = Labels(n)
    limit = best.seconds * (1 - PROOF)
    dropped, num_labels = np.inf, 0
    for end in range(1, n + 1):
        if not np.isfinite(compute_to_go[end]):
            continue
        here = slice(first[end], first[end + 1])
        values, source, group = labels.extended(groups, order[here], start[here])
        num_labels += len(source)
        if end == n:
            if most is not None:
                values = np.where(values[4] <= most, values, np.inf)
            lengths = np.maximum(values[2], values[3])
            if len(lengths) and lengths.min() < limit:
                at = int(lengths.argmin())
                best = groups.plan(labels.along(int(source[at]), int(group[at])))
            break
        # Nothing is sent before the next group is compressed, and nothing is decompressed before all compute is over.
        # So being ready sooner than that is no advantage, and must not keep a label alive.
        values[1] = np.maximum(values[1], values[0] + soonest[end])
        values[2] = np.maximum(values[2], values[3] + compute_to_go[end])
        rows = np.arange(len(source)) if most is None else np.flatnonzero(values[4] < most)
        least = np.full(len(rows), -np.inf)
        for part in (slice(0, 3), slice(3, None)):  # the first three blends rule out most labels
            bounds = weights[part, end] @ values[:, rows] + to_go[part, end, None]
            least = np.maximum(least, bounds.max(axis=0))
            rows, least = rows[least < limit], least[least < limit]
        rounded = np.round(values[: 4 + (most is not None), rows] / (grain * best.seconds))
        if one_route:
            front = _front(rounded)
            rows, least, rounded = rows[front], least[front], rounded[:, front]
        kept, rest = _kept(rounded, least, width)
        rows = rows[kept]
        dropped = min(dropped, rest)
        labels.add(end, values[:, rows], source[rows], group[rows])
    # With a coarse grain, labels may have been dropped as equal to others. No bound covers those.
    return Sweep(best, min(dropped, best.seconds) if grain == ROUNDING else 0.0, num_labels)


class Labels:
    """For each label C, D, M, Q and the number of groups; the label that it extends, and the group that it adds."""

    def __init__(self, num_tensors: int) -> None:
        self._values = np.zeros((5, 4096))
        self._source = np.full(4096, -1)
        self._group = np.full(4096, -1)
        self._begin = np.zeros(num_tensors + 1, dtype=np.int64)
        self._count = np.zeros(num_tensors + 1, dtype=np.int64)
        self._count[0] = self._num = 1

    def extended(self, groups: Groups, rows: Ints, start: Ints) -> tuple[Array, Ints, Ints]:
        """Add each group to all labels that end where it starts: new values, labels extended, groups added."""
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
        new = slice(self._num, self._num + count)
        self._values[:, new], self._source[new], self._group[new] = values, source, group
        self._begin[end], self._count[end] = self._num, count
        self._num += count

    def along(self, label: int, group: int) -> Ints:
        """The groups of the plan that adds this group to the label."""
        rows = [group]
        while label > 0:
            rows.append(int(self._group[label]))
            label = int(self._source[label])
        return np.array(rows[::-1])


def _front(values: Array) -> Ints:
    """With one route: the labels that none undercuts in D and M among those with equal Q and number of groups.

    These two determine C, which need not be compared.
    """
    order = np.lexsort((values[2], values[1], values[-1]))
    same = np.cumsum(np.diff(values[-1, order], prepend=values[-1, order[:1]]) != 0)
    lowest = values[2, order].astype(np.int64) - (same << 44)  # so that M is compared among equals only
    return order[np.diff(np.minimum.accumulate(lowest), prepend=1 << 44) < 0]


def _kept(values: Array, least: Array, width: int) -> tuple[Ints, float]:
    """At most `width` labels that no other undercuts, by rising bounds; and the least bound of those left out.

    A label's bound is at least the bound of a label that undercuts it, so the undercut one comes later.
    """
    kept, left = np.zeros(0, dtype=np.int64), np.arange(len(least))
    ahead = kept
    while len(kept) < width and len(left):
        ranked = np.argpartition(least[left], AHEAD) if len(left) > AHEAD else np.arange(len(left))
        ahead, left = left[ranked[:AHEAD]], left[ranked[AHEAD:]]
        ahead = ahead[np.lexsort((values[:, ahead].sum(axis=0), least[ahead]))]
        ahead = ahead[~_undercut(values[:, ahead], values[:, kept])]
        while len(kept) < width and len(ahead):
            tried, ahead = ahead[:BLOCK], ahead[BLOCK:]
            new = tried[~np.triu(_undercuts(values[:, tried], values[:, tried]), 1).any(axis=0)]
            ahead = ahead[~_undercut(values[:, ahead], values[:, new])]
            kept = np.concatenate((kept, new))
        left = left[~_undercut(values[:, left], values[:, kept[:BLOCK]])]
    rest = np.concatenate((kept[width:], ahead, left))
    return kept[:width], float(least[rest].min()) if len(rest) else np.inf


def _undercut(values: Array, others: Array) -> Flags:
    """Which labels one of the others undercuts."""
    return np.any(_undercuts(others, values), axis=0)


def _undercuts(values: Array, others: Array) -> Flags:
    """[i, j]: whether label i undercuts label j of the others."""
    undercuts = np.ones((values.shape[1], others.shape[1]), dtype=bool)
    for row, other_row in zip(values, others, strict=True):
        undercuts &= row[:, None] <= other_row
    return undercuts
