"""Schedules: golden ones, laws of all, what is refused, when receives are posted, depths under a budget."""

from dataclasses import replace
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.crossmesh.pipelines import edges, schedule
from thinwire.crossmesh.pipelines.edges import Edge
from thinwire.crossmesh.pipelines.receives import Receive, receives
from thinwire.crossmesh.pipelines.schedule import Action, Schedule
from thinwire.crossmesh.pipelines.simulator import Costs, chain, simulate
from thinwire.crossmesh.pipelines.warm_up import warm_up_under

GOLDEN = {
    schedule.gpipe: """\
        r0: F0 F1 F2 F3 B0 B1 B2 B3
        r1: F0 F1 F2 F3 B0 B1 B2 B3""",
    schedule.one_f_one_b: """\
        r0: F0 F1 B0 F2 B1 F3 B2 B3
        r1: F0 B0 F1 B1 F2 B2 F3 B3""",
    schedule.eager_1f1b: """\
        r0: F0 F1 F2 B0 F3 B1 B2 B3
        r1: F0 B0 F1 B1 F2 B2 F3 B3""",
}


@pytest.mark.parametrize("build", GOLDEN, ids=lambda build: build.__name__)
def test_two_stages_four_microbatches(build) -> None:  # type: ignore[no-untyped-def]
    assert str(build(2, 4)) == dedent(GOLDEN[build])


def test_four_stages() -> None:
    assert str(schedule.one_f_one_b(4, 6)) == dedent("""\
        r0: F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5
        r1: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5
        r2: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5
        r3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5""")
    assert str(schedule.eager_1f1b(4, 8)) == dedent("""\
        r0: F0 F1 F2 F3 F4 F5 F6 B0 F7 B1 B2 B3 B4 B5 B6 B7
        r1: F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 F7 B3 B4 B5 B6 B7
        r2: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7
        r3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7""")


def test_weight_delay() -> None:
    assert str(schedule.split(schedule.eager_1f1b(2, 4))) == dedent("""\
        r0: F0 F1 F2 B0 F3 B1 B2 B3
        r1: F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3""")
    assert str(schedule.split(schedule.eager_1f1b(2, 4), delay=1)) == dedent("""\
        r0: F0 F1 F2 B0 F3 B1 B2 B3
        r1: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3""")


sizes = st.tuples(st.integers(1, 6), st.integers(1, 9))
builders = st.sampled_from([schedule.gpipe, schedule.one_f_one_b, schedule.eager_1f1b])


@given(sizes, builders, st.none() | st.integers(0, 3))
def test_text_round_trips_and_times_have_no_say_in_peaks(size, build, delay) -> None:  # type: ignore[no-untyped-def]
    n, m = size
    made = build(n, m) if delay is None else schedule.split(build(n, m), delay=delay)
    assert Schedule.parse(str(made)) == made
    assert made.num_stages == n
    assert made.num_microbatches == m
    more = delay or 0
    for stage in range(n):
        depth = {"gpipe": m, "one_f_one_b": min(m, n - stage), "eager_1f1b": min(m, 2 * (n - stage) - 1)}[
            build.__name__
        ]
        assert made.warm_up(stage) == depth
        # The first stage is never split; elsewhere each delayed W keeps one more.
        assert made.peak_activations(stage) == min(m, depth + (more if stage else 0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("r0: F0 F1 B0", "stage 0 has no I1"),
        ("r0: F0 B0 B0", "stage 0 has B0 twice"),
        ("r0: B0 F0", "stage 0 has B0 before F0"),
        ("r0: F0 W0 I0", "stage 0 has W0 before I0"),
        ("r0: F0 B0 W0", "a part of it beside"),
        ("r0: F1 B1", "number them from 0"),
        ("r0: F0 B0\nr1: F0 B0 F1 B1", "stage 1 has F1, stage 0 has 1 micro-batches"),
        ("r0: F0 B0 F1 B1\nr1: F0 F1 B0 B1", "in a circle: stage 0 at B0, stage 1 at F1"),
        ("r0: F0 X0", "action 'X0'"),
        ("r1: F0 B0", "give `r0: F0"),
        ("", "at least one stage"),
    ],
)
def test_what_could_not_run_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Schedule.parse(text)


def test_depths_that_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="don't rise"):
        schedule.warmed_up([2, 3], 4)


SKIPS = (*edges.chain(4), Edge("skip", 0, 3))


@given(st.integers(2, 9), builders, st.booleans())
def test_receives_are_posted_in_time_and_not_before(m, build, splits) -> None:  # type: ignore[no-untyped-def]
    """Played out with a stage's own actions held back as long as they can be: a sender is never ahead of the receive,
    and a receive never ahead of what could be sent."""
    made = schedule.split(build(4, m)) if splits else build(4, m)
    for stage in range(4):
        posts = receives(made, SKIPS, stage)
        assert sum(map(len, posts)) == m * sum(stage in (edge.source, edge.destination) for edge in SKIPS)
        for done, posted in enumerate(posts):
            could = _sendable(made, stage, done)
            before = _sendable(made, stage, done - 1) if done else set()
            assert set(posted) == could - before


def _sendable(made: Schedule, stage: int, done: int) -> set[Receive]:
    """What the others can send this stage while it has done so many actions."""
    ended: list[set[Action]] = [set() for _ in made.stages]
    ended[stage] = set(made.stages[stage][:done])
    moved = True
    while moved:
        moved = False
        for other, actions in enumerate(made.stages):
            for action in actions:
                if other == stage or action in ended[other]:
                    continue
                number = action.microbatch
                if action.kind == "F":
                    ready = all(action in ended[edge.source] for edge in SKIPS if edge.destination == other)
                else:
                    back = [ended[edge.destination] for edge in SKIPS if edge.source == other]
                    ready = all(
                        Action("B", number) in ended_there or Action("I", number) in ended_there for ended_there in back
                    )
                if not (ready or action.kind == "W"):
                    break
                ended[other].add(action)
                moved = True
    sendable = set()
    for edge in SKIPS:
        if edge.destination == stage:
            sendable |= {Receive(edge, True, action.microbatch) for action in ended[edge.source] if action.kind == "F"}
        if edge.source == stage:
            sendable |= {
                Receive(edge, False, action.microbatch) for action in ended[edge.destination] if action.sends_back
            }
    return sendable


def test_warm_up_under_a_budget() -> None:
    costs = _weighing(chain(4, forward_s=1, backward_s=2, transfer_s=1.5), 100)
    tight, middle, wide = (warm_up_under([budget] * 4, costs, 16, weight_delay=False) for budget in (400, 500, 10_000))
    assert tight.depths == (4, 3, 2, 1)
    assert tight.timeline.seconds == 99
    # One activation more on the first stages, and no more where it buys nothing.
    assert middle.depths == (5, 4, 2, 1)
    assert tight.timeline.seconds > middle.timeline.seconds > wide.timeline.seconds
    assert wide.schedule == schedule.eager_1f1b(4, 16)
    assert max(middle.timeline.peak_bytes) <= 500


def test_warm_up_takes_no_memory_for_nothing() -> None:
    """Where weight delay hides all there is to hide, 1F1B's depths do as well as eager's."""
    costs = _weighing(chain(4, forward_s=1, backward_s=2, transfer_s=0.25), 100)
    best = warm_up_under([10_000] * 4, costs, 16)
    assert best.depths == (4, 3, 2, 1)
    assert best.timeline.seconds == simulate(schedule.split(schedule.eager_1f1b(4, 16)), costs).seconds == 55.5


def test_a_budget_too_small_for_1f1b_says_where() -> None:
    costs = _weighing(chain(4, forward_s=1, backward_s=2, transfer_s=1), 100)
    with pytest.raises(ValueError, match="stage 0: 1F1B keeps 4 activations of 100 bytes, the budget is 399; give 400"):
        warm_up_under([399] * 4, costs, 16)


def _weighing(costs: Costs, activation_bytes: int) -> Costs:
    return replace(costs, stages=tuple(replace(stage, activation_bytes=activation_bytes) for stage in costs.stages))
