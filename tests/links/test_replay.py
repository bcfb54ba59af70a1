"""Recorded steps on made-up wires: times that can be worked out by hand."""

import pytest

from thinwire.links.cost import CostModel
from thinwire.links.replay import replay
from thinwire.links.script import COMPUTE, POST, WAIT, Operation, Script, steadied
from thinwire.prediction.wires import even

MB = 1_000_000


def wires(ranks: int, bytes_per_s: float, message_s: float = 0.0) -> CostModel:
    """Whose payload goes at this rate."""
    return even(ranks, bytes_per_s * 8 * 1538 / 1448, message_s)


def rank(epochs: list[list[tuple[str, float, str]]], beside_s: float = 0.0, **sizes: int) -> Script:
    """Each operation sends so much to rank 1 - me, told as all-to-all; two ranks."""
    return Script(epochs, {name: Operation("all_to_all", {0: size, 1: size}) for name, size in sizes.items()}, beside_s)


def test_a_transfer_in_the_open_adds_up_and_a_hidden_one_does_not() -> None:
    shown = [(COMPUTE, 1.0, ""), (POST, 0.0, "x"), (WAIT, 0.0, "x"), (COMPUTE, 2.0, "")]
    hidden = [(COMPUTE, 1.0, ""), (POST, 0.0, "x"), (COMPUTE, 2.0, ""), (WAIT, 0.0, "x")]
    half = [(COMPUTE, 1.0, ""), (POST, 0.0, "x"), (COMPUTE, 0.25, ""), (WAIT, 0.0, "x")]
    for steps, expected in ((shown, 3.5), (hidden, 3.0), (half, 1.5)):
        scripts = [rank([steps], x=MB)] * 2
        assert replay(scripts, wires(2, 2 * MB), cores=None) == pytest.approx([expected])


def test_a_message_costs_something_however_small() -> None:
    steps = [(POST, 0.0, "x"), (WAIT, 0.0, "x")]
    assert replay([rank([steps], x=0)] * 2, wires(2, MB, 0.5), cores=None) == pytest.approx([0.5])


def test_all_wait_for_the_last_to_post() -> None:
    late = [(COMPUTE, 4.0, ""), (POST, 0.0, "x"), (WAIT, 0.0, "x")]
    early = [(COMPUTE, 1.0, ""), (POST, 0.0, "x"), (WAIT, 0.0, "x"), (COMPUTE, 1.0, "")]
    assert replay([rank([late], x=MB), rank([early], x=MB)], wires(2, MB), cores=None) == pytest.approx([6.0])


def test_two_under_way_share_the_wires() -> None:
    # Alone 1 s each. The second joins after half a second: the first ends at 1.5, the second at 2.
    steps = [(POST, 0.0, "x"), (COMPUTE, 0.5, ""), (POST, 0.0, "y"), (WAIT, 0.0, "x"), (WAIT, 0.0, "y")]
    first = [*steps[:4]]
    assert replay([rank([first], x=MB, y=MB)] * 2, wires(2, MB), cores=None) == pytest.approx([1.5])
    assert replay([rank([steps], x=MB, y=MB)] * 2, wires(2, MB), cores=None) == pytest.approx([2.0])


def test_stale_messages_cross_from_epoch_to_epoch() -> None:
    # A second each, alone. Epoch 1 waits until 1.5, as x1 shares the wires from 0.5 on; x1 is then there for epoch 2.
    sizes = {f"x{number}": MB for number in range(4)}
    epochs = [[(POST, 0.0, "x0"), (COMPUTE, 0.5, "")]]
    epochs += [[(POST, 0.0, f"x{k}"), (WAIT, 0.0, f"x{k - 1}"), (COMPUTE, 0.5, "")] for k in range(1, 4)]
    slow = replay([rank(epochs, **sizes)] * 2, wires(2, MB), cores=None)
    fast = replay([rank(epochs, **sizes)] * 2, wires(2, 4 * MB), cores=None)
    assert slow == pytest.approx([0.5, 1.5, 0.5, 1.5])
    assert fast == pytest.approx([0.5] * 4)


def test_ranks_of_one_machine_share_its_cores() -> None:
    steps = [(COMPUTE, 1.0, "")]
    for cores, expected in ((None, 1.0), (4, 1.0), (2, 2.0), (1, 4.0)):
        assert replay([rank([steps])] * 4, even(4, 1e9), cores=cores) == pytest.approx([expected])


def test_transfers_compute_too() -> None:
    # A byte costs each of two ranks a microsecond: on one core they take turns with what ranks compute.
    steps = [(POST, 0.0, "x"), (COMPUTE, 1.0, ""), (WAIT, 0.0, "x")]
    both = [rank([steps], 1e-6, x=MB)] * 2
    fast = wires(2, 1000 * MB)
    assert replay(both, fast, cores=None)[0] == pytest.approx(2.0, rel=0.01)
    assert replay(both, fast, cores=1)[0] == pytest.approx(6.0, rel=0.01)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="2 ranks were recorded, the wires are of 3"):
        replay([rank([[]])] * 2, even(3, 1e9), cores=None)
    waiting, posting = [(WAIT, 0.0, "x")], [(POST, 0.0, "x"), (WAIT, 0.0, "x")]
    with pytest.raises(ValueError, match="ranks wait for x"):
        replay([rank([waiting], x=1), rank([posting], x=1)], even(2, 1e9), cores=None)


def test_a_disturbed_epoch_does_not_count() -> None:
    def epoch(seconds: float, turn: int) -> list[tuple[str, float, str]]:
        return [(COMPUTE, seconds, ""), (POST, 0.0, f"x/{turn}"), (COMPUTE, 1.0, "")]

    other = [(COMPUTE, 7.0, "")]
    made = Script([epoch(1.0, 1), other, epoch(9.0, 2), epoch(1.2, 3)], {}, 0.0)
    steady = steadied(made).epochs
    assert [steps[0][1] for steps in steady] == [1.2, 7.0, 1.2, 1.2]
    assert [steps[1][2] for steps in (steady[0], steady[2])] == ["x/1", "x/2"]
