r"""AdaQP's assignment of bits (arXiv 2306.01381), solved row by row instead of by groups. Pure.

An exchange runs in rounds, and each round takes as long as its slowest pair. Let V be the weighted variance of all
rows and Z the seconds of all rounds. The objective

.. math:: \lambda \frac{V - V_8}{V_2 - V_8} + (1 - \lambda) \frac{\max(Z, H) - Z_2}{Z_8 - Z_2}

is minimized. The index 2 or 8 means that all rows have that many bits. H seconds are free, hidden behind computation.
(2 and 8 are the ends of the published choice. The ends of a wider choice would be a bad measure: where rows hardly
change between epochs, not sending them adds little variance, and bits would be bought as if seconds were cheap.)

At a given length of a round, each pair spends its bytes along its own curve. So the variance of a round is convex in
its length, and one search over the price of a second finds all lengths. The price also gives a lower bound on the
objective of any assignment: no pair costs less than its minimum at its share of the price.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from thinwire.fullgraph.curve import Array, Curve, Ints, Taken
from thinwire.links.cost import Hinge

# Points (plus the two ends) of a pair's curve that are sent to other ranks. A curve with fewer steps is sent in full.
POINTS = 256
# Lengths of a round that `assign` tries with whole rows.
TRIALS = 256


@dataclass(frozen=True)
class Outline:
    """A few points of a pair's curve."""

    bytes: Array
    variance: Array
    marks: Array  # those of the curve

    @staticmethod
    def of(curve: Curve) -> "Outline":
        size, variance = curve.bytes, curve.variance
        if len(size) > POINTS:
            # Half of the points are even in bytes, half in the log of the remaining variance, which falls fast first.
            by_bytes = np.searchsorted(size, np.linspace(size[0], size[-1], POINTS // 2))
            left = np.geomspace(1.0, 1e-6, POINTS // 2) * (variance[0] - variance[-1]) + variance[-1]
            by_left = np.searchsorted(-variance, -left)
            chosen = np.unique(np.concatenate(([0, len(size) - 1], by_bytes, by_left)).clip(0, len(size) - 1))
            size, variance = size[chosen], variance[chosen]
        return Outline(size, variance, curve.marks)

    def packed(self) -> Array:
        """The same as an array of fixed length, to send to other ranks."""
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
    """Rows from one rank to another in one exchange: their round, the time of bytes, the variance over bytes."""

    round: int
    line: Hinge
    outline: Outline

    def budget(self, seconds: float) -> float:
        """The bytes that can be sent in this time."""
        return (seconds - self.line.fixed_s) / self.line.slope if self.line.slope > 0 else np.inf

    def ends(self, sizes: Array) -> Array:
        """The seconds that each of these sizes takes."""
        return np.maximum(self.line.floor_s, self.line.fixed_s + self.line.slope * sizes)

    def least(self, curve: Curve, price: float) -> float:
        """The minimum of this pair's variance plus its seconds times the price."""
        sizes = curve.bytes
        if self.line.slope > 0:  # the minimum may be where the time's floor ends, between two steps
            sizes = np.append(sizes, np.clip(self.budget(self.line.floor_s), sizes[0], sizes[-1]))
        return float((np.interp(sizes, curve.bytes, curve.variance) + price * self.ends(sizes)).min())


@dataclass(frozen=True)
class Scale:
    """Makes variance and seconds comparable: the weights of both, and the values that they are counted from."""

    variance_weight: float
    seconds_weight: float
    from_variance: float
    from_s: float
    free_s: float  # H: rounds of up to this time in total cost nothing

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
        """A lower bound on the objective.

        `least` sums the pairs' least costs, at shares of the price that add up to it in each round.
        """
        value = least - price * self.free_s - self.from_variance
        return self.variance_weight * value + self.seconds_weight * (self.free_s - self.from_s)


@dataclass(frozen=True)
class Lengths:
    """The length of each round, the price of a second, and each pair's share of the price."""

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
    """The best lengths of all rounds, if rows could be divided."""
    rounds = {number: _Round([pair for pair in pairs if pair.round == number]) for number in _numbers(pairs)}
    price = _price(list(rounds.values()), scale)
    shares = {number: iter(round_.shares(price)) for number, round_ in rounds.items()}
    return Lengths(
        {number: round_.best(price) for number, round_ in rounds.items()},
        price,
        [next(shares[pair.round]) for pair in pairs],
    )


def _price(rounds: Sequence["_Round"], scale: Scale) -> float:
    """The price of a second, between 0 and the highest price.

    It is the highest if the rounds take more than the free seconds even then, and 0 if they fit into the free seconds
    without a price. Else it is the price at which they just fit.
    """

    def taken(price: float) -> float:
        return sum(round_.best(price) for round_ in rounds)

    if not rounds:
        return 0.0
    # If variance has no weight, a second costs more than any variance that it can save.
    enough = 2 * max(round_.steepest() for round_ in rounds) + 1.0
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
    """The pairs that send at the same time, and their variance over the length of the round."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        ends = [pair.ends(pair.outline.bytes) for pair in pairs]
        shortest = max(float(pair_ends[0]) for pair_ends in ends)
        lengths = np.unique(np.concatenate((*ends, [shortest])))
        self.lengths = lengths[lengths >= shortest]
        self._slowest = int(np.argmax([pair_ends[0] for pair_ends in ends]))  # the pair that sets the shortest length
        self._curves = []
        self._variance = np.zeros(len(self.lengths))  # summed over pairs
        for pair, pair_ends in zip(pairs, ends, strict=True):
            # Points below the floor take the same time; the last of them counts.
            last = np.append(pair_ends[1:] > pair_ends[:-1], True)
            self._curves.append((pair_ends[last], pair.outline.variance[last]))
            self._variance += np.interp(self.lengths, *self._curves[-1])

    def best(self, price: float) -> float:
        """The length at which variance plus seconds times the price is least."""
        return float(self.lengths[self._at(price)])

    def _at(self, price: float) -> int:
        return int(np.argmin(self._variance + price * self.lengths))

    def shares(self, price: float) -> list[float]:
        """Each pair's share of the price: the variance that it would save with a little more time.

        The shares add up to the price.
        """
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
    """A choice for each row, found by one process that knows all rows, and how good it is."""

    choices: list[Ints]  # for each pair, one for each row
    variance: float
    seconds: float
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """No assignment's objective is lower than this one's by more than this."""
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
    best = lengths(pairs, scale)
    taken = [
        curves[number].within(pair.budget(best.seconds[pair.round])) for number, pair in zip(used, pairs, strict=True)
    ]
    for number in _numbers(pairs):
        taken = _best_whole(pairs, [curves[at] for at in used], taken, number, best.seconds[number], scale)
    variance = sum(steps.variance for steps in taken)
    total_s = seconds(pairs, [steps.bytes for steps in taken])
    least = sum(pair.least(curves[number], share) for number, pair, share in zip(used, pairs, best.shares, strict=True))
    choices: list[Ints] = [np.zeros(0, dtype=np.int64) for _ in curves]
    for number, steps in zip(used, taken, strict=True):
        choices[number] = steps.choices()
    return Assignment(choices, variance, total_s, scale.objective(variance, total_s), scale.bound(least, best.price))


def _best_whole(
    pairs: Sequence[Pair], curves: Sequence[Curve], taken: list[Taken], number: int, length: float, scale: Scale
) -> list[Taken]:
    """Try lengths of this round near the best one for divided rows, with whole rows; other rounds stay as they are."""
    in_round = [at for at, pair in enumerate(pairs) if pair.round == number]
    lengths = _Round([pairs[at] for at in in_round]).lengths
    at = int(np.searchsorted(lengths, length))
    best, least = taken, np.inf
    for trial in lengths[max(0, at - TRIALS // 2) : at + TRIALS // 2]:
        tried = list(taken)
        for place in in_round:
            tried[place] = curves[place].within(pairs[place].budget(float(trial)))
        total_s = seconds(pairs, [steps.bytes for steps in tried])
        value = scale.objective(sum(steps.variance for steps in tried), total_s)
        if value < least:
            best, least = tried, value
    return best


def _numbers(pairs: Sequence[Pair]) -> list[int]:
    return sorted({pair.round for pair in pairs})
