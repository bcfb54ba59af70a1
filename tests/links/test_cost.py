"""The cost model: lines that fit, ways of going that add up, the same after a file."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.links.cost import KINDS, STRAIGHT, CostModel, Hinge, Link, fit_hinge
from thinwire.links.routes import CHUNK_BYTES, chain_heirs, tree_heirs

PLAIN = dict.fromkeys(KINDS, STRAIGHT)


def uniform(world_size: int, *, bytes_per_s: float = 1e6, latency_s: float = 0.001) -> CostModel:
    pairs = [(i, j) for i in range(world_size) for j in range(world_size) if i != j]
    links = {pair: Link(*pair, latency_s=latency_s, fixed_s=latency_s, bytes_per_s=bytes_per_s) for pair in pairs}
    return CostModel(world_size, links, PLAIN)


def slow_pair(world_size: int, pair: tuple[int, int]) -> CostModel:
    model = uniform(world_size)
    return CostModel(
        world_size, {**model.links, pair: Link(*pair, latency_s=0.001, fixed_s=0.001, bytes_per_s=1e5)}, PLAIN
    )


@settings(deadline=None)
@given(st.floats(1e-4, 0.01), st.floats(-0.005, 0.01), st.floats(1e-9, 1e-6))
def test_a_hinge_is_found_again(floor: float, fixed: float, slope: float) -> None:
    sizes = [1e3, 1e4, 6e4, 2.5e5, 1e6, 4e6]
    truth = Hinge(floor, fixed, slope)
    fitted = fit_hinge(sizes, [truth(size) for size in sizes])
    if sum(truth(size) > floor for size in sizes) >= 2 or truth(sizes[-1]) == floor:
        for size in sizes:
            assert fitted(size) == pytest.approx(truth(size), rel=1e-6)


def test_one_wild_time_does_not_turn_the_line_down() -> None:
    assert fit_hinge([1, 2, 3], [3.0, 2.0, 1.0]).slope == 0.0
    with pytest.raises(ValueError, match="at least two"):
        fit_hinge([1], [1.0])


def test_an_even_exchange_takes_its_bytes_over_the_rate() -> None:
    for n in (1, 2, 3, 4, 8):
        assert uniform(n).all_to_all([[500_000] * n] * n) == pytest.approx((n - 1) * 0.5)


def test_a_slow_pair_costs_its_round_and_no_more() -> None:
    assert slow_pair(4, (0, 1)).all_to_all([[100_000] * 4] * 4) == pytest.approx(1.0 + 0.1 + 0.1)


@settings(max_examples=200)
@given(st.integers(2, 6), st.data())
def test_rounds_stay_between_the_busiest_host_and_the_sum_of_the_slowest_pairs(n: int, data: st.DataObject) -> None:
    sizes = [[data.draw(st.integers(0, 10**6)) for _ in range(n)] for _ in range(n)]
    model = uniform(n)
    took = model.rounds_s(sizes)
    out = [sum(sizes[i][j] for j in range(n) if j != i) for i in range(n)]
    into = [sum(sizes[j][i] for j in range(n) if j != i) for i in range(n)]
    in_step = sum(max(sizes[i][(i + r) % n] for i in range(n)) for r in range(1, n))
    assert max(out + into) / 1e6 <= took * (1 + 1e-9)
    assert took <= in_step / 1e6 * (1 + 1e-9)


def test_rings_and_chains() -> None:
    model = uniform(4)
    assert model.all_reduce(1_000_000) == pytest.approx(1.5)
    assert model.all_gather([250_000] * 4) == pytest.approx(0.75)
    assert model.all_gather([0, 0, 0, 250_000]) == pytest.approx(model.all_to_all([[0] * 4] * 3 + [[250_000] * 4]))
    assert uniform(2).broadcast(1_000_000, 0) == pytest.approx(1.0)
    assert model.broadcast(1_000_000, 0) == pytest.approx(
        1.0 + 2 * CHUNK_BYTES / 1e6
    )  # all links at a time, after the first chunk
    assert model.send(0, 1, 1_000_000) == pytest.approx(1.001)
    for one in (uniform(1).all_reduce(5), uniform(1).broadcast(5, 0), uniform(1).all_gather([5])):
        assert one == 0.0


def test_a_model_survives_a_file() -> None:
    model = slow_pair(3, (2, 0))
    assert CostModel.from_json(json.loads(json.dumps(model.to_json()))) == model


@pytest.mark.parametrize("heirs", [chain_heirs, tree_heirs])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8])
def test_a_broadcast_reaches_everybody_once(world_size: int, heirs: Callable[[int, int, int], list[int]]) -> None:
    for source in range(world_size):
        reached = [source]
        for rank in range(world_size):
            reached += heirs(rank, source, world_size)
        assert sorted(reached) == list(range(world_size))
