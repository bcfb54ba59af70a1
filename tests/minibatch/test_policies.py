"""Caches: what policies know, what is chosen, what is fetched less; and the schedule that they are for."""

import numpy as np
import pytest
import torch

from tests.minibatch.made import random_topology, topology_of
from thinwire.minibatch import POLICIES, Salient
from thinwire.minibatch.policies import Question, capacity, choose, worth
from thinwire.minibatch.predict import rows_of, traffic
from thinwire.minibatch.rows import RowFormat
from thinwire.minibatch.schedule import Schedule, schedule_of
from thinwire.minibatch.topology import Topology


def question_of(topology: Topology, rank: int = 0, *, batch: int = 8, fanouts: tuple[int, ...] = (4, 3)) -> Question:
    members = [part[: len(part) // 4] for part in topology.members(0)]
    return Question(topology, schedule_of(members, rank, batch, 7), fanouts, epochs=12)


def test_chosen_are_the_best_and_no_more_than_asked() -> None:
    worths = np.array([0.0, 3.0, 1.0, 1.0, 0.0, 1.0, 9.0])
    assert choose(worths, 3).tolist() == [1, 2, 6]  # of equal ones the first
    assert choose(worths, 100).tolist() == [1, 2, 3, 5, 6]  # none without worth
    assert choose(worths, 0).tolist() == []
    assert capacity(0.16, 1000, 4) == 40
    assert capacity(0.0, 1000, 4) == 0


def test_what_policies_know() -> None:
    """0 and 1 are ours, 0 the only seed; 0 draws from 2 and 3, 2 from 4, 1 from 5."""
    topology = topology_of([(2, 0), (3, 0), (4, 2), (5, 1), (4, 5), (3, 5), (3, 4)], 6, parts=3)
    question = Question(topology, Schedule(np.array([0]), (1, 0, 0), 0, 1, 0), (1, 1), epochs=50)
    assert worth("degree", question).tolist() == [0, 0, 1, 3, 2, 0]
    assert worth("halo", question).tolist() == [0, 0, 1, 1, 0, 1]
    assert worth("paths", question).tolist() == [0, 0, 1, 1, 1, 0]
    np.testing.assert_allclose(worth("vip", question), [0, 0, 0.5, 0.5, 0.5, 0])
    counts = worth("oracle", question)
    assert counts[2] + counts[3] == 50
    assert counts[4] == counts[2]
    assert worth("simulation", question)[[2, 3]].sum() == 2
    assert not worth("none", question).any()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5])
def test_the_oracle_is_best_and_vip_near_it(alpha: float) -> None:
    topology = random_topology(4, 3000, 30_000, parts=3)
    question = question_of(topology)
    times = question.touched(range(question.epochs))
    times[: topology.starts[1]] = 0
    left = {}
    for policy in POLICIES:
        kept = choose(worth(policy, question), capacity(alpha, topology.num_nodes, 3))
        assert len(kept) <= capacity(alpha, topology.num_nodes, 3)
        assert not len(kept) or kept.min() >= topology.starts[1]  # none of our own
        left[policy] = times.sum() - times[kept].sum()
    assert left["oracle"] == min(left.values())
    assert left["none"] == max(left.values()) == times.sum()
    assert left["vip"] <= 1.1 * left["oracle"]
    assert left["vip"] <= min(left[policy] for policy in ("halo", "paths", "simulation"))
    assert left["vip"] <= left["degree"] or alpha < 0.2
    for policy in POLICIES:
        kept = choose(worth(policy, question), capacity(alpha, topology.num_nodes, 3))
        assert rows_of(question, kept, policy) == pytest.approx(left[policy] / question.epochs, rel=0.1), policy


def test_every_seed_once_an_epoch_and_equally_many_steps() -> None:
    members = [np.arange(10), np.arange(100, 137), np.zeros(0, dtype=np.int64)]
    plans = [schedule_of(members, rank, 8, seed=3) for rank in range(3)]
    assert [plan.steps for plan in plans] == [5, 5, 5]
    for plan, part_members in zip(plans, members, strict=True):
        order = plan.order(0)
        assert sorted(order.tolist()) == part_members.tolist()
        _, ends, _ = plan.work(0)
        assert ends[-1] == len(part_members)
        sizes = np.diff(ends, prepend=0)
        assert sizes.max(initial=0) <= 8
        assert sizes.max(initial=0) - sizes.min(initial=8) <= 1
    assert sum(plans[0].total(step) for step in range(5)) == 47
    assert plans[1].order(0).tolist() != plans[1].order(1).tolist()
    assert plans[1].order(4).tolist() == plans[1].order(4).tolist()
    assert len({*plans[0].work(0)[2], *plans[0].work(1)[2], *plans[1].work(0)[2]}) == 15
    seeds, ends, keys = plans[1].work(2)
    later_seeds, later_ends, later_keys = plans[1].work(2, first=3)
    assert later_keys.tolist() == keys[3:].tolist()
    assert later_seeds.tolist() == seeds[ends[2] :].tolist()
    assert (later_ends + ends[2]).tolist() == ends[3:].tolist()
    in_order = schedule_of(members, 1, 8, seed=3, shuffled=False)
    assert in_order.order(5).tolist() == members[1].tolist()


def test_a_rank_with_fewer_seeds_than_steps_knows_what_it_will_fetch() -> None:
    topology = random_topology(6, 600, 6000, parts=2)
    first, second = topology.members(0)
    members = [first, second[:3]]
    question = Question(topology, schedule_of(members, 1, 10, 5), (3, 3), epochs=40)
    assert question.schedule.steps == 30
    times = question.touched(range(40))
    times[topology.starts[1] :] = 0
    assert rows_of(question, np.zeros(0, dtype=np.int64)) == pytest.approx(times.sum() / 40, rel=0.1)


def test_traffic_of_rows() -> None:
    halves = RowFormat.of("auto", torch.zeros(1, 10, dtype=torch.float16))
    assert traffic([5.0, 7.0], 3, halves).feature_bytes == 12 * (20 + 4) + 3 * 2 * 8
    assert RowFormat.of("uniform:2", torch.zeros(1, 10)).nbytes(4) == 4 * 7


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "1 or more seeds"),
        ({"fanouts": ()}, "one for each layer"),
        ({"fanouts": (0,)}, "-1 for all"),
        ({"cache": float("nan")}, "give 0"),
        ({"cache_policy": "magic"}, "give one of vip"),
        ({"rows": "uniform:3"}, "give one of auto"),
        ({"depth": -1}, "give 0"),
        ({"threads": 0}, "give 1 or more"),
    ],
)
def test_what_salient_can_not_do(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Salient(**wrong)  # type: ignore[arg-type]
