r"""AdaQP's assignment of bits (arXiv 2306.01381), solved row by row instead of by groups. Pure.

An exchange goes in rounds, each as long as its slowest pair. With V the weighted variance of all rows and Z the
seconds of all rounds,

.. math:: \lambda \frac{V - V_8}{V_2 - V_8} + (1 - \lambda) \frac{\max(Z, H) - Z_2}{Z_8 - Z_2}

is made least, where an index is the bits that all rows have, and H seconds are free: hidden behind computation. (2 and
8 are the ends of the published choice. Measured by the ends of a wider one, an exchange whose rows hardly move from
epoch to epoch, so that not to send them adds little, would buy bits as if seconds were cheap.) At a given length of a
round each pair spends its bytes by its own curve, so that the variance of a round is convex in its length: a search
over the price of a second finds all lengths at once. Prices also bound what any assignment can reach: whole rows can't
undercut each pair's least cost at its share of the price.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from thinwire.fullgraph.curve import Array, Curve, Ints, Taken
from thinwire.links.cost import Hinge

# Points (and two more) that a pair's curve is sent to the others by. Fewer steps than that are sent as they are.
POINTS = 256
# Lengths of a round that are tried with whole rows, where one process knows all.
TRIALS = 256


@dataclass(frozen=True)
class Outline:
    """A pair's curve by a few of its points."""

    bytes: Array
    variance: Array
    marks: Array  # as the curve's

    @staticmethod
    def of(curve: Curve) -> "Outline":
        size, variance = curve.bytes, curve.variance
        if len(size) > POINTS:
            # Half evenly by bytes, half evenly by what is left of the variance, which falls steeply at first.
            by_bytes = np.searchsorted(size, np.linspace(size[0], size[-1], POINTS // 2))
            left = np.geomspace(1.0, 1e-6, POINTS // 2) * (variance[0] - variance[-1]) + variance[-1]
            by_left = np.searchsorted(-variance, -left)
            chosen = np.unique(np.concatenate(([0, len(size) - 1], by_bytes, by_left)).clip(0, len(size) - 1))
            size, variance = size[chosen], variance[chosen]
        return Outline(size, variance, curve.marks)

    def packed(self) -> Array:
        """As numbers of a fixed count, to be sent to others."""
        room = POINTS + 2 - len(self.bytes)
        count = [float(len(self.bytes))]
        padded = (np.pad(self.bytes, (0, room)), np.pad(self.variance, (0, room)))
        return np.concatenate((count, *padded, self.marks.ravel()))

    @staticmethod
    def unpacked(numbers: Array) -> "Outline":
        sizes, variances = numbers[1:-4].reshape(2, POINTS + 2)[:, : int(numbers[0])]
        return Outline(sizes, variances, numbers[-4:].reshape(2, 2))


@dataclass(frozen=True)
class Pair:
    """Rows from one rank to another in one exchange: the round they go in, what it takes, what bytes buy."""

    round: int
    line: Hinge
    outline: Outline

    def budget(self, seconds: float) -> float:
        """Bytes that go in so many."""
        return (seconds - self.line.fixed_s) / self.line.slope if self.line.slope > 0 else np.inf

    def ends(self, sizes: Array) -> Array:
        """Seconds that so many bytes take."""
        return np.maximum(self.line.floor_s, self.line.fixed_s + self.line.slope * sizes)

    def least(self, curve: Curve, price: float) -> float:
        """The least that this pair's variance, and its seconds at this price, come to."""
        sizes = curve.bytes
        if self.line.slope > 0:  # where its floor ends, between two steps, it may be less than at either
            sizes = np.append(sizes, np.clip(self.budget(self.line.floor_s), sizes[0], sizes[-1]))
        return float((np.interp(sizes, curve.bytes, curve.variance) + price * self.ends(sizes)).min())


@dataclass(frozen=True)
class Scale:
    """What makes variance and seconds comparable: weights of both, and where they are counted from."""

    variance_weight: float
    seconds_weight: float
    from_variance: float
    from_s: float
    free_s: float  # Z up to here costs nothing

    @staticmethod
    def of(pairs: Sequence[Pair], balance: float, hidden_s: float) -> "Scale":
        low, high = (sum(float(pair.outline.marks[mark, 1]) for pair in pairs) for mark in range(2))
        low_s, high_s = (seconds(pairs, [float(pair.outline.marks[mark, 0]) for pair in pairs]) for mark in range(2))
        return Scale(
            balance / (low - high) if low > high else 0.0,
            (1 - balance) / (high_s - low_s) if high_s > low_s else 0.0,
            high,
            low_s,
            max(hidden_s, 0.0),
        )

    def objective(self, variance: float, total_s: float) -> float:
        late = max(total_s, self.free_s) - self.from_s
        return self.variance_weight * (variance - self.from_variance) + self.seconds_weight * late

    def bound(self, least: float, price: float) -> float:
        """What no objective is below, from the pairs' least costs at prices that add up to this one in each round."""
        value = least - price * self.free_s - self.from_variance
        return self.variance_weight * value + self.seconds_weight * (self.free_s - self.from_s)


@dataclass(frozen=True)
class Lengths:
    """How long each round is to be; the price of a second, and the share of it that each pair answers for."""

    seconds: Mapping[int, float]
    price: float
    shares: list[float]


def seconds(pairs: Sequence[Pair], sizes: Sequence[float]) -> float:
    """Z: the sum over rounds of the slowest pair."""
    slowest: dict[int, float] = {}
    for pair, size in zip(pairs, sizes, strict=True):
        slowest[pair.round] = max(slowest.get(pair.round, 0.0), pair.line(size))
    return sum(slowest.values())


def lengths(pairs: Sequence[Pair], scale: Scale) -> Lengths:
    """The best ones, rows taken as divisible."""
    rounds = {number: _Round([pair for pair in pairs if pair.round == number]) for number in _numbers(pairs)}
    price = _price(list(rounds.values()), scale)
    shares = {number: iter(each.shares(price)) for number, each in rounds.items()}
    return Lengths(
        {number: each.best(price) for number, each in rounds.items()},
        price,
        [next(shares[pair.round]) for pair in pairs],
    )


def _price(rounds: Sequence["_Round"], scale: Scale) -> float:
    """Of a second: the highest where more is taken than is free, 0 where all fits, else what makes it just fit."""

    def taken(price: float) -> float:
        return sum(each.best(price) for each in rounds)

    if not rounds:
        return 0.0
    # Where variance has no weight, a second is dearer than all that it buys.
    enough = 2 * max(each.steepest() for each in rounds) + 1.0
    highest = scale.seconds_weight / scale.variance_weight if scale.variance_weight > 0 else enough
    if taken(highest) >= scale.free_s:
        return highest
    if taken(0.0) <= scale.free_s:
        return 0.0
    low, high = 0.0, highest
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if taken(middle) > scale.free_s else (low, middle)
    return high


class _Round:
    """Pairs whose streams flow side by side: their variance over the length of the round."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        ends = [pair.ends(pair.outline.bytes) for pair in pairs]
        shortest = max(float(each[0]) for each in ends)
        every = np.unique(np.concatenate((*ends, [shortest])))
        self.lengths = every[every >= shortest]
        self._slowest = int(np.argmax([each[0] for each in ends]))  # which keeps the round from being shorter
        self._curves = []
        self._variance = np.zeros(len(self.lengths))  # of all pairs together
        for pair, own in zip(pairs, ends, strict=True):
            # Of points below the floor, which take the same time, the last one counts.
            last = np.append(own[1:] > own[:-1], True)
            self._curves.append((own[last], pair.outline.variance[last]))
            self._variance += np.interp(self.lengths, *self._curves[-1])

    def best(self, price: float) -> float:
        """The length where variance and seconds at this price are least together."""
        return float(self.lengths[self._at(price)])

    def _at(self, price: float) -> int:
        return int(np.argmin(self._variance + price * self.lengths))

    def shares(self, price: float) -> list[float]:
        """Of the price, by what a little more time would spare each pair; they add up to it."""
        at = self._at(price)
        after = self._slopes(at, at + 1) if at + 1 < len(self.lengths) else np.zeros(len(self._curves))
        before = self._slopes(at - 1, at) if at else after
        missing = price - after.sum()
        if at == 0 or before.sum() <= after.sum():
            after[self._slowest] += missing
            return [max(0.0, float(share)) for share in after]
        return [float(share) for share in after + (before - after) * (missing / (before - after).sum())]

    def _slopes(self, low: int, high: int) -> Array:
        ends = self.lengths[[low, high]]
        fallen = [-np.diff(np.interp(ends, *curve))[0] for curve in self._curves]
        return np.array(fallen) / (ends[1] - ends[0])

    def steepest(self) -> float:
        if len(self.lengths) < 2:
            return 0.0
        return float((-np.diff(self._variance) / np.diff(self.lengths)).max())


@dataclass(frozen=True)
class Assignment:
    """What one process finds that knows all rows: a choice for each, and how good it is."""

    choices: list[Ints]  # of each pair's rows
    variance: float
    seconds: float
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """Nobody's objective is lower by more."""
        return max(0.0, self.objective - self.bound)


def assign(
    curves: Sequence[Curve], rounds: Sequence[int], lines: Sequence[Hinge], *, balance: float = 0.5, hidden_s: float = 0
) -> Assignment:
    """A choice for every row of every pair. `balance` is the paper's lambda."""
    if not 0 <= balance <= 1:
        raise ValueError(f"balance is {balance}; give 0 (time alone) to 1 (variance alone)")
    used = [number for number, curve in enumerate(curves) if curve.num_rows]
    if not used:
        return Assignment([np.zeros(0, dtype=np.int64) for _ in curves], 0.0, 0.0, 0.0, 0.0)
    pairs = [Pair(rounds[number], lines[number], Outline.of(curves[number])) for number in used]
    scale = Scale.of(pairs, balance, hidden_s)
    found = lengths(pairs, scale)
    taken = [
        curves[number].within(pair.budget(found.seconds[pair.round])) for number, pair in zip(used, pairs, strict=True)
    ]
    for number in _numbers(pairs):
        taken = _best_whole(pairs, [curves[each] for each in used], taken, number, found.seconds[number], scale)
    variance = sum(each.variance for each in taken)
    total_s = seconds(pairs, [each.bytes for each in taken])
    least = sum(
        pair.least(curves[number], share) for number, pair, share in zip(used, pairs, found.shares, strict=True)
    )
    choices: list[Ints] = [np.zeros(0, dtype=np.int64) for _ in curves]
    for number, each in zip(used, taken, strict=True):
        choices[number] = each.choices()
    return Assignment(choices, variance, total_s, scale.objective(variance, total_s), scale.bound(least, found.price))


def _best_whole(
    pairs: Sequence[Pair], curves: Sequence[Curve], taken: list[Taken], number: int, length: float, scale: Scale
) -> list[Taken]:
    """Rows are whole: lengths around the divisible one that suit this round best, the others as they are."""
    own = [at for at, pair in enumerate(pairs) if pair.round == number]
    every = _Round([pairs[at] for at in own]).lengths
    at = int(np.searchsorted(every, length))
    best, least = taken, np.inf
    for trial in every[max(0, at - TRIALS // 2) : at + TRIALS // 2]:
        tried = list(taken)
        for each in own:
            tried[each] = curves[each].within(pairs[each].budget(float(trial)))
        total_s = seconds(pairs, [each.bytes for each in tried])
        value = scale.objective(sum(each.variance for each in tried), total_s)
        if value < least:
            best, least = tried, value
    return best


def _numbers(pairs: Sequence[Pair]) -> list[int]:
    return sorted({pair.round for pair in pairs})
