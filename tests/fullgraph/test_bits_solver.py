"""AdaQP's solver: the best there is by exhaustive search and HiGHS, or within the gap it states; and quick."""

import itertools
import time

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from thinwire.fullgraph import bits_solver
from thinwire.fullgraph.assign import marks
from thinwire.fullgraph.curve import Array, Curve
from thinwire.links.cost import Hinge

SIZES = np.array([9.0, 12.0, 20.0, 36.0, 68.0])


def an_instance(seed: int) -> tuple[list[Array], list[int], list[Hinge]]:
    """Ranks 3, some pairs without rows; variances as a quantizer's, or any."""
    randomness = np.random.default_rng(seed)
    variances, rounds, lines = [], [], []
    for src, dst in itertools.permutations(range(3), 2):
        count = int(randomness.integers(0, 5))
        if seed % 2:
            shape = randomness.lognormal(0, 2, (count, 1)) / (2.0 ** np.array([1, 2, 4, 8, 16]) - 1) ** 2
            variances.append(shape * randomness.uniform(0.8, 1.2, (count, 5)))
        else:
            variances.append(randomness.uniform(0, 1, (count, 5)))
        rounds.append((dst - src) % 3)
        lines.append(
            Hinge(float(randomness.uniform(0, 40)), float(randomness.uniform(-5, 20)), randomness.uniform(0.2, 3))
        )
    return variances, rounds, lines


def solved_by_highs(
    variances: list[Array],
    rounds: list[int],
    lines: list[Hinge],
    balance: float,
    hidden_s: float,
    marks: tuple[int, int],
) -> float:
    """The same objective as a mixed integer program."""
    used = [number for number, variance in enumerate(variances) if len(variance)]
    worse, better = (sum(float(variances[number][:, mark].sum()) for number in used) for mark in marks)

    def together(sizes: dict[int, float]) -> float:
        return sum(
            max(lines[number](sizes[number]) for number in used if rounds[number] == r)
            for r in {rounds[number] for number in used}
        )

    low_s, high_s = (together({n: float(len(variances[n]) * SIZES[mark]) for n in used}) for mark in marks)
    variance_weight = balance / (worse - better) if worse > better else 0.0
    seconds_weight = (1 - balance) / (high_s - low_s) if high_s > low_s else 0.0
    numbers = sorted({rounds[number] for number in used})
    cells = [(number, row, c) for number in used for row in range(len(variances[number])) for c in range(len(SIZES))]
    num = len(cells) + len(numbers) + 1  # a switch each, a length each, and max(Z, free)
    cost = np.zeros(num)
    cost[: len(cells)] = [variance_weight * variances[n][row, c] for n, row, c in cells]
    cost[-1] = seconds_weight
    rows, low, high = [], [], []

    def need(entries: dict[int, float], least: float, most: float = np.inf) -> None:
        rows.append(entries)
        low.append(least)
        high.append(most)

    for number in used:
        of_pair = [at for at, cell in enumerate(cells) if cell[0] == number]
        length = len(cells) + numbers.index(rounds[number])
        line = lines[number]
        need({length: 1.0} | {at: -line.slope * SIZES[cells[at][2]] for at in of_pair}, line.fixed_s)
        need({length: 1.0}, line.floor_s)
        for row in range(len(variances[number])):
            need({at: 1.0 for at in of_pair if cells[at][1] == row}, 1.0, 1.0)
    need({num - 1: 1.0} | {len(cells) + at: -1.0 for at in range(len(numbers))}, 0.0)
    need({num - 1: 1.0}, hidden_s)
    matrix = lil_matrix((len(rows), num))
    for at, entries in enumerate(rows):
        for column, value in entries.items():
            matrix[at, column] = value
    whole = np.zeros(num)
    whole[: len(cells)] = 1
    top = np.full(num, np.inf)
    top[: len(cells)] = 1
    solution = milp(
        cost,
        constraints=LinearConstraint(matrix.tocsr(), low, high),
        integrality=whole,
        bounds=Bounds(np.zeros(num), top),
        options={"mip_rel_gap": 0.0},
    )
    assert solution.success
    return float(solution.fun) - variance_weight * better - seconds_weight * low_s


@pytest.mark.parametrize("block", range(4))
def test_equals_highs_or_lies_within_the_stated_gap(block: int) -> None:
    exact = 0
    for seed in range(80 * block, 80 * (block + 1)):
        variances, rounds, lines = an_instance(seed)
        if not any(len(variance) for variance in variances):
            continue
        balance = (0.5, 0.9, 0.1, 0.0, 1.0)[seed % 5]
        hidden_s = (0.0, 60.0, 150.0)[seed % 3]
        marks = ((0, -1), (1, 3))[seed % 2]
        best = solved_by_highs(variances, rounds, lines, balance, hidden_s, marks)
        curves = [Curve.of(SIZES, v, marks) for v in variances]
        assigned = bits_solver.assign(curves, rounds, lines, balance=balance, hidden_s=hidden_s)
        assert assigned.bound <= best + 1e-6, seed
        assert best - 1e-6 <= assigned.objective <= best + assigned.gap + 1e-6, seed
        exact += assigned.objective <= best + 1e-6
    assert exact >= 60, exact


def test_the_bound_holds_where_a_floor_ends_between_two_steps() -> None:
    """At 5 and 1 bytes the pair is below what it costs where steps of the curve end."""
    errors = np.array([[8.01, 10.0, 0.0], [4.0, 0.0, 0.0]])
    assigned = bits_solver.assign([Curve.of([1.0, 5.0, 9.0], errors)], [1], [Hinge(6.0, 0.0, 1.0)], balance=0.476)
    assert assigned.bound <= assigned.objective
    best = min(
        0.476 * sum(errors[row, c] for row, c in enumerate(chosen)) / 12.01
        + 0.524 * (max(6.0, sum((1.0, 5.0, 9.0)[c] for c in chosen)) - 6.0) / 8.0
        for chosen in itertools.product(range(3), repeat=2)
    )
    assert assigned.bound <= best + 1e-9
    assert assigned.objective <= best + assigned.gap + 1e-9


def test_hidden_seconds_are_spent_and_no_more() -> None:
    variances, rounds, lines = an_instance(7)
    curves = [Curve.of(SIZES, variance) for variance in variances]
    trade = bits_solver.assign(curves, rounds, lines, balance=0.01)
    previous = trade.variance
    for hidden_s in (trade.seconds, 1.3 * trade.seconds, 2 * trade.seconds, 100 * trade.seconds):
        assigned = bits_solver.assign(curves, rounds, lines, balance=0.01, hidden_s=hidden_s)
        assert assigned.seconds <= hidden_s + 1e-9
        assert assigned.variance <= previous + 1e-12
        previous = assigned.variance
    assert previous == pytest.approx(sum(variance.min(axis=1).sum() for variance in variances if len(variance)))
    assert previous < trade.variance


@pytest.mark.slow
@pytest.mark.timed
def test_assigns_a_million_messages_in_seconds() -> None:
    randomness = np.random.default_rng(0)
    sizes = [26.0, 36.0, 68.0, 132.0, 260.0, 516.0, 1024.0]
    shape = np.array([2.0, 1.5, 0.3, 0.02, 1e-4, 1e-8, 0.0])
    variances, rounds, lines = [], [], []
    for src, dst in itertools.permutations(range(4), 2):
        variances.append(randomness.lognormal(0, 1.5, (83_334, 1)) * shape * randomness.uniform(0.9, 1.1, (83_334, 7)))
        rounds.append((dst - src) % 4)
        lines.append(Hinge(0.0, 0.0, 1e-7))
    start = time.process_time()
    assigned = bits_solver.assign([Curve.of(sizes, variance) for variance in variances], rounds, lines)
    taken = time.process_time() - start
    assert sum(len(chosen) for chosen in assigned.choices) > 1_000_000
    assert assigned.gap < 1e-4
    assert taken < 4.0, taken


def test_bits_are_bought_at_the_published_price_whatever_else_there_is_to_choose() -> None:
    """Choices beyond 2 and 8 bits, however good or bad, move neither the price of a second nor the rows that pay it."""
    assert marks((2, 4, 8)) == (0, 2)
    assert marks((0, 1, 2, 4, 8, 16, 32)) == (2, 4)
    assert marks((1, 8)) == (0, -1)
    shape = np.random.default_rng(1).lognormal(0, 1, (200, 1))
    usual = shape / np.array([3.0, 15.0, 255.0]) ** 2
    sizes, line = [12.0, 20.0, 36.0], [Hinge(0.0, 0.0, 1.0)]
    (few,) = bits_solver.assign([Curve.of(sizes, usual)], [1], line).choices
    for unsent in (2.0 * shape, 0.12 * shape):  # neither is ever worth it beside 2 bits
        wide = np.concatenate((unsent, usual, 0 * shape), axis=1)
        (many,) = bits_solver.assign([Curve.of([11.9, *sizes, 128.0], wide, (1, 3))], [1], line).choices
        assert np.count_nonzero(many - 1 != few) <= 2  # of 200: a last row that fits or does not
    curve = Curve.of(sizes, usual)
    outline = bits_solver.Outline.of(curve)
    unpacked = bits_solver.Outline.unpacked(outline.packed())
    for name in ("bytes", "variance", "marks"):
        assert np.array_equal(getattr(unpacked, name), getattr(outline, name))
