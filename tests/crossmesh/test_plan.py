"""Plans carried out on paper, by the thousand: right, bounded, and as good as exhaustive search on small cases."""

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch

from tests.crossmesh.made import carried_out, drawn_layout, drawn_network, drawn_shape, tiles
from thinwire.crossmesh.balance import Shipment, balance, bound_s
from thinwire.crossmesh.broadcast import ALLGATHER, BROADCAST, SEND_RECV, STRATEGIES
from thinwire.crossmesh.layout import Layout
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import AUTO, Plan, TensorSpec, plan, plan_all
from thinwire.crossmesh.tasks import unit_tasks


@pytest.mark.parametrize("strategy", [*STRATEGIES, AUTO])
def test_plans_bring_every_value_where_it_belongs(strategy: str) -> None:
    rng = random.Random(strategy)
    moved = 0
    for _ in range(300):
        world_size = rng.randint(1, 9)
        shape = drawn_shape(rng)
        source = drawn_layout(rng, world_size, shape, partial=True)
        destination = drawn_layout(rng, world_size, shape)
        network = drawn_network(rng, world_size)
        piece_bytes = rng.choice((16, 64, 1 << 25))
        made = plan_all((TensorSpec("x", source, destination, 8),), network, strategy, piece_bytes)
        whole = torch.arange(1, 1 + torch.Size(shape).numel()).view(shape)
        (out,) = carried_out(made, [tiles(source, whole)])
        for rank, expected in tiles(destination, whole).items():
            assert torch.equal(out[rank], expected), (source, destination, rank)
        assert made.predicted_s >= made.bound_s * (1 - 1e-6)
        assert made.host_bytes >= made.least_host_bytes
        if strategy in (ALLGATHER, BROADCAST, AUTO) and not made.reductions and made.strategy != SEND_RECV:
            assert made.host_bytes == made.least_host_bytes  # each byte once into each host that lacks it
        moved += bool(made.routes)
    assert moved > 150


def test_plans_repeat_themselves() -> None:
    layouts = Layout((2, 2), (0, 1, 2, 3), ("S0", "R"), (9, 5)), Layout((2, 2), (4, 5, 6, 7), ("R", "S1"), (9, 5))
    network = Network.even([0, 0, 1, 1, 2, 2, 3, 3])
    first = plan(*layouts, itemsize=4, network=network)
    plan_all.cache_clear()
    assert plan(*layouts, itemsize=4, network=network) == first


# Section 6 of the method: many to many; bound, send/recv and broadcast in units of the whole tensor over one link.
CASES = {
    "1": ((2, 4), ("S0", "R"), (2, 4), ("S0", "R"), (256, 256, 128), 0.5, 2.0),
    "2": ((2, 4), ("R", "R"), (2, 4), ("S0", "R"), (256, 256, 128), 0.5, 2.0),
    "3": ((2, 4), ("S1", "R"), (2, 4), ("S0", "R"), (256, 256, 128), 0.5, 2.0),
    "4": ((2, 4), ("S1", "S1"), (2, 4), ("S0", "S0"), (256, 256, 128), 0.5, 0.5),
    "5": ((2, 4), ("R", "S0"), (2, 4), ("S0", "R"), (256, 256, 128), 0.5, 2.0),
    "6": ((2, 4), ("S0", "R"), (3, 4), ("S0", "R"), (384, 256, 85), 0.5, 2.0),
    "7": ((1, 4), ("R", "S0"), (2, 4), ("R", "R"), (256, 256, 128), 1.0, 8.0),
    "9": ((2, 4), ("S1", "R"), (2, 4), ("S2", "R"), (256, 256, 128), 0.5, 2.0),
}


def many_to_many(case: str, strategy: str, *, message_s: float = 1e-12) -> tuple[Plan, float]:
    """The plan, and the seconds of the whole tensor over one link, where messages cost nothing."""
    source_mesh, source_words, mesh, words, shape, _, _ = CASES[case]
    count = source_mesh[0] * source_mesh[1]
    source = Layout(source_mesh, tuple(range(count)), source_words, shape)
    destination = Layout(mesh, tuple(range(count, count + mesh[0] * mesh[1])), words, shape)
    hosts = [rank // 4 for rank in range(count + mesh[0] * mesh[1])]
    even = Network.even(hosts, 1e6)
    network = Network(even.host_of, even.bytes_per_s, message_s, 1e15)
    return plan(source, destination, itemsize=4, network=network, strategy=strategy), torch.Size(
        shape
    ).numel() * 4 / 1e6


@pytest.mark.parametrize("case", CASES)
def test_the_papers_cases_are_planned_at_their_bound(case: str) -> None:
    *_, bound, plain = CASES[case]
    for strategy in (BROADCAST, AUTO):
        made, t = many_to_many(case, strategy)
        assert made.bound_s == pytest.approx(bound * t, rel=1e-4)
        assert made.predicted_s == pytest.approx(bound * t, rel=0.01)
    made, t = many_to_many(case, SEND_RECV)
    assert made.predicted_s == pytest.approx(plain * t, rel=0.01)
    made, t = many_to_many(case, ALLGATHER)
    assert made.predicted_s == pytest.approx((2 if case == "7" else 0.5) * t, rel=0.01)


def test_unit_tasks_are_as_many_as_the_paper_counts() -> None:
    for case, count in {"1": 2, "2": 2, "3": 4, "4": 64, "5": 4, "6": 4, "7": 4, "9": 4}.items():
        source, source_words, mesh, words, *_ = CASES[case]
        sides = [Layout(source, tuple(range(source[0] * source[1])), source_words, (24, 24, 24))]
        sides.append(Layout(mesh, tuple(range(99, 99 + mesh[0] * mesh[1])), words, (24, 24, 24)))
        assert len(unit_tasks(sides[0], sides[1], 4)[0]) == count


def exhaustive_s(shipments: Sequence[Shipment]) -> float:
    """The least makespan of all senders and orders."""
    best = float("inf")
    for senders in itertools.product(*(shipment.seconds for shipment in shipments)):
        for order in itertools.permutations(range(len(shipments))):
            free: defaultdict[tuple[str, int], float] = defaultdict(float)
            for index in order:
                sender, seconds = senders[index]
                ports = shipments[index].ports(sender)
                end = max(free[port] for port in ports) + seconds
                for port in ports:
                    free[port] = end
            best = min(best, max(free.values()))
    return best


def drawn_shipments(rng: random.Random) -> list[Shipment]:
    """Up to five shipments; senders and receivers apart, or the same hosts."""
    hosts = rng.randint(2, 4)
    apart = rng.random() < 0.7
    shipments = []
    for _ in range(rng.randint(1, 5)):
        senders = rng.sample(range(hosts), rng.randint(1, min(2, hosts - 1)))
        others = [host for host in range(hosts) if host not in senders]
        pool = [host + hosts for host in range(rng.randint(1, 3))] if apart else others
        receivers = tuple(rng.sample(pool, rng.randint(1, len(pool))))
        size = rng.choice((1.0, 2.0, 3.0, 5.0))
        factor = rng.choice((1.0, 1.0, 2.0))
        shipments.append(
            Shipment(tuple((host, size * (factor if i else 1.0)) for i, host in enumerate(senders)), receivers)
        )
    return shipments


def test_the_bound_is_true_and_the_search_optimal_on_small_cases() -> None:
    rng = random.Random(7)
    tight = optimal = 0
    for _ in range(1000):
        shipments = drawn_shipments(rng)
        best = exhaustive_s(shipments)
        bound = bound_s(shipments)
        balanced = balance(shipments)
        assert bound <= best * (1 + 1e-9)
        assert balanced.makespan_s >= best * (1 - 1e-9)
        tight += bound >= best * (1 - 1e-4)
        optimal += balanced.makespan_s <= best * (1 + 1e-9)
        # The schedule is one: no port is used twice at a time.
        used: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for shipment, sender, start in zip(shipments, balanced.senders, balanced.starts_s, strict=True):
            for port in shipment.ports(sender):
                used[port].append((start, start + dict(shipment.seconds)[sender]))
        for spans in used.values():
            for (_, end), (begin, _) in itertools.pairwise(sorted(spans)):
                assert begin >= end - 1e-9
    assert optimal == 1000
    assert tight > 700


def test_alpas_counterexample() -> None:
    """{1,2} -> 4 and {1} -> 3: a bound that fixes a greedy sender says 10; 5 is possible."""
    shipments = [Shipment(((1, 5.0), (2, 5.0)), (4,)), Shipment(((1, 5.0),), (3,))]
    assert balance(shipments).makespan_s == 5.0
    assert bound_s(shipments) == pytest.approx(5.0, rel=1e-5)


@pytest.mark.slow
@pytest.mark.timed
def test_a_large_plan_takes_seconds() -> None:
    network, source, destination = large()
    begin = time.process_time()
    plan(source, destination, itemsize=4, network=network)
    assert time.process_time() - begin < 3.0


def test_a_large_plan_is_near_its_bound() -> None:
    network, source, destination = large()
    made = plan(source, destination, itemsize=4, network=network)
    assert made.predicted_s < 1.3 * made.bound_s


def large() -> tuple[Network, Layout, Layout]:
    """64 ranks on 8 hosts to as many others."""
    ranks = tuple(range(64))
    shape = (512, 512, 64)
    source = Layout((8, 8), ranks, ("S0", "S1"), shape)
    destination = Layout((4, 16), tuple(rank + 64 for rank in ranks), ("S2", "S0"), shape)
    return Network.even([rank // 8 for rank in range(128)]), source, destination


def test_mistakes_are_named() -> None:
    a, b = Layout((2,), (0, 1), ("S0",), (4,)), Layout((2,), (2, 3), ("R",), (4,))
    with pytest.raises(ValueError, match="not known"):
        plan(a, b, itemsize=4, network=Network.even([0, 1, 2, 3]), strategy="telepathy")
    with pytest.raises(ValueError, match="the network has 2 ranks"):
        plan(a, b, itemsize=4, network=Network.even([0, 1]))
    with pytest.raises(ValueError, match="no one value"):
        plan(b, Layout((2,), (0, 1), ("P",), (4,)), itemsize=4, network=Network.even([0, 1, 2, 3]))
    with pytest.raises(ValueError, match="both name one tensor"):
        plan(a, Layout((2,), (2, 3), ("R",), (5,)), itemsize=4, network=Network.even([0, 1, 2, 3]))
