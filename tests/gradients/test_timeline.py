"""The timeline of a plan: the recurrences by hand, and laws that hold for every plan."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from thinwire.gradients.timeline import GroupTimes, Route, replay

PLAIN = Route("plain", (0.0,) * 4, (0.0,) * 4, (10, 20, 30, 40), 0.0, 0.0, lambda size: size / 10)
DENSE = Route("dense", (1.0, 2.0, 3.0, 4.0), (0.5, 0.5, 1.0, 1.0), (1, 2, 3, 4), 10.0, 20.0, lambda size: 100 + size)
BACKWARD_S = [2.0, 3.0, 4.0, 5.0]


def test_two_groups_by_hand() -> None:
    """The second waits for the channel; decompression waits for backward, then for what arrives."""
    timeline = replay(BACKWARD_S, [PLAIN, DENSE], [1, 4], [1, 0])
    assert timeline.groups == (
        GroupTimes(2.0, 13.0, 13.0, 114.0, 114.0, 134.5),
        GroupTimes(25.0, 25.0, 114.0, 123.0, 134.5, 134.5),
    )
    assert (timeline.seconds, timeline.backward_end_s) == (134.5, 25.0)


def test_nothing_is_decompressed_before_backward_is_over() -> None:
    timeline = replay(BACKWARD_S, [PLAIN], [2, 3, 4], [0, 0, 0])
    assert [group.transfer_end_s for group in timeline.groups] == [8.0, 12.0, 18.0]
    assert [group.decompress_begin_s for group in timeline.groups] == [14.0, 14.0, 18.0]


def test_compression_delays_what_follows() -> None:
    late = replay(BACKWARD_S, [PLAIN, DENSE], [1, 4], [1, 0]).groups[1].compress_begin_s
    assert late - replay(BACKWARD_S, [PLAIN, DENSE], [1, 4], [0, 0]).groups[1].compress_begin_s == 11.0


def test_one_group_is_the_sum_of_its_parts() -> None:
    assert replay(BACKWARD_S, [DENSE], [4], [0]).seconds == 14 + (10 + 10) + (100 + 10) + (20 + 3)


def test_predicted_tolls_and_lags_count_only_while_backward_runs() -> None:
    shared = Route(
        "shared", (0.0,) * 4, (0.0,) * 4, (10, 20, 30, 40), 1.0, 0.0, lambda size: size / 10, lambda _: 1.0, 0.5
    )
    reckoned = replay(BACKWARD_S, [shared], [1, 4], [0, 0])
    assert [(group.compress_end_s, group.transfer_end_s) for group in reckoned.groups] == [(3.0, 4.0), (16.0, 25.0)]
    predicted = replay(BACKWARD_S, [shared], [1, 4], [0, 0], predict=True)
    # The first is on its way beside backward, which it delays; the second leaves when that is over.
    assert [(group.compress_end_s, group.transfer_end_s) for group in predicted.groups] == [(2.0, 3.5), (15.0, 24.0)]
    # Of three the channel takes the second only when backward is over: it costs that nothing.
    slow = replace(shared, transfer_s=lambda size: 20.0)
    predicted = replay(BACKWARD_S, [slow], [1, 2, 4], [0, 0, 0], predict=True)
    assert [(group.compress_end_s, group.transfer_begin_s) for group in predicted.groups] == [
        (2.0, 2.0),
        (6.0, 22.5),
        (15.0, 42.5),
    ]
    # Both have waited: they are there sooner than one that finds the channel free.
    hasty = replay(BACKWARD_S, [replace(slow, haste_s=3.0)], [1, 2, 4], [0, 0, 0], predict=True)
    assert [group.transfer_end_s for group in hasty.groups] == [22.5, 39.5, 56.5]
    assert replay(BACKWARD_S, [PLAIN], [4], [0], predict=True) == replay(BACKWARD_S, [PLAIN], [4], [0])


@pytest.mark.parametrize("seed", range(30))
def test_laws(seed: int) -> None:
    randomness = np.random.default_rng(seed)
    n = int(randomness.integers(1, 12))
    routes = []
    for number in range(3):
        compress_s, decompress_s, nbytes = (tuple(row) for row in randomness.uniform(0, 2, (3, n)).tolist())
        routes.append(Route(str(number), compress_s, decompress_s, nbytes, 0.3, 0.7, lambda size: 1 + math.sin(size)))
    backward_s = randomness.uniform(0, 2, n).tolist()
    ends = sorted({n, *randomness.integers(1, n + 1, 4).tolist()})
    chosen = randomness.integers(0, 3, len(ends)).tolist()
    timeline = replay(backward_s, routes, ends, chosen)
    compress = sum(routes[route].compress_fixed_s for route in chosen) + sum(
        routes[route].compress_s[tensor]
        for start, end, route in zip([0, *ends], ends, chosen, strict=False)
        for tensor in range(start, end)
    )
    assert timeline.backward_end_s == pytest.approx(sum(backward_s) + compress)
    for group in timeline.groups:
        assert group.compress_begin_s <= group.compress_end_s <= group.transfer_begin_s <= group.transfer_end_s
        assert max(group.transfer_end_s, timeline.backward_end_s) <= group.decompress_begin_s <= group.decompress_end_s
    for one, other in itertools.pairwise(timeline.groups):
        assert other.transfer_begin_s == max(one.transfer_end_s, other.compress_end_s)
        assert other.decompress_begin_s == max(one.decompress_end_s, other.transfer_end_s)
        assert one.compress_end_s <= other.compress_begin_s


@pytest.mark.parametrize(
    ("ends", "chosen", "message"),
    [
        ([], [], "ends at 0; it must end at 4"),
        ([2, 2, 4], [0, 0, 0], "group 1 ends at 2, the one before it at 2"),
        ([0, 4], [0, 0], "group 0 ends at 0"),
        ([3, 1, 4], [0, 0, 0], "group 1 ends at 1, the one before it at 3"),
        ([2, 3], [0, 0], "ends at 3; it must end at 4"),
        ([2, 5], [0, 0], "ends at 5; it must end at 4"),
        ([2, 4], [0], "2 ends and 1 chosen routes"),
        ([4], [1], "goes by route 1; there are 1"),
        ([4], [-1], "goes by route -1"),
    ],
)
def test_plans_that_are_none(ends: list[int], chosen: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replay(BACKWARD_S, [PLAIN], ends, chosen)


def test_costs_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"'bad': compress_s\[1\] is -1"):
        Route("bad", (0.0, -1.0), (0.0, 0.0), (1, 1), 0.0, 0.0, float)
    with pytest.raises(ValueError, match=r"'bad': nbytes\[0\] is nan"):
        Route("bad", (0.0,), (0.0,), (math.nan,), 0.0, 0.0, float)
    with pytest.raises(ValueError, match=r"decompress_fixed_s\[0\] is inf"):
        Route("bad", (0.0,), (0.0,), (1,), 0.0, math.inf, float)
    with pytest.raises(ValueError, match="decompress_s of 1 tensors, nbytes of 2"):
        Route("bad", (0.0, 0.0), (0.0,), (1, 1), 0.0, 0.0, float)
    with pytest.raises(ValueError, match=r"transfer_s\(10\) is nan"):
        replay([1.0], [Route("bad", (0.0,), (0.0,), (10,), 0.0, 0.0, lambda size: math.nan)], [1], [0])
    with pytest.raises(ValueError, match="backward_s is empty"):
        replay([], [PLAIN], [], [])
    with pytest.raises(ValueError, match=r"backward_s\[2\] is nan"):
        replay([1.0, 1.0, math.nan, 1.0], [PLAIN], [4], [0])
    with pytest.raises(ValueError, match="no route to send by"):
        replay(BACKWARD_S, [], [4], [0])
    with pytest.raises(ValueError, match="'plain' is for 4 tensors, backward_s has 2"):
        replay([1.0, 1.0], [PLAIN], [2], [0])
