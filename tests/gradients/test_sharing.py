"""Which codec for gradients beside other messages, on made-up steps: one only where a tenth of a step is saved."""

import pytest

from thinwire.gradients.sent import bytes_of as sent_bytes
from thinwire.gradients.sent import group_messages
from thinwire.gradients.sharing import CODECS, Choice, CodecSeconds, Measured, bytes_of, choose, plan_of, with_codec
from thinwire.gradients.verdict import Verdict
from thinwire.links.cost import CostModel
from thinwire.links.replay import replay
from thinwire.links.script import COMPUTE, POST, WAIT, Operation, Script, Step
from thinwire.prediction.wires import even

RANKS = 3
SIZES = [[60_000, 40_000]]
FREE = {spec: CodecSeconds() for spec in CODECS}
MEASURED = Measured(SIZES, FREE)


def steps(compute_s: float, halo_bytes: int, *, stale: bool = False) -> list[Script]:
    """Two steps: halo rows, of this or the last step, backward, and the gradients' sum."""
    scripts = []
    for rank in range(RANKS):
        operations = {}
        epochs: list[list[Step]] = []
        for number in (1, 2):
            halo, sums = f"halo/{number}", f"gradients/{number}"
            others = {peer: halo_bytes for peer in range(RANKS) if peer != rank}
            operations[halo] = Operation("all_to_all", others)
            message = group_messages(SIZES[0], "none", RANKS, rank)[0]
            operations[sums] = Operation(message.kind, message.bytes_to)
            waits: list[Step] = [] if stale and number == 1 else [(WAIT, 0.0, f"halo/{number - stale}")]
            posts: list[Step] = [(COMPUTE, compute_s / 2, ""), (POST, 0.0, halo)]
            ends: list[Step] = [(COMPUTE, compute_s / 2, ""), (POST, 0.0, sums), (WAIT, 0.0, sums)]
            epochs.append([*posts, *waits, *ends])
        scripts.append(Script(epochs, operations, 0.0))
    return scripts


def chosen(scripts: list[Script], cost: CostModel, measured: Measured = MEASURED) -> Choice:
    return choose(scripts, [0.0, 1.0], cost, measured, cores=None)


def test_none_where_nothing_waits_and_thin_where_all_do() -> None:
    found = {rate: chosen(steps(0.1, 1000), even(RANKS, rate)) for rate in (1e11, 1e6)}
    assert found[1e11].codec == "none"
    assert "too little for a codec" in found[1e11].why
    assert found[1e6].codec == "uniform:4"
    assert found[1e6].step_s["none"] > 5 * found[1e6].step_s[found[1e6].codec]


def test_none_where_the_wires_are_full_of_other_messages() -> None:
    """Gradients that come to a twentieth of the halo rows save nothing worth a codec, however slow the wires."""
    full = sum(sum(message.bytes_to.values()) for message in group_messages(SIZES[0], "none", RANKS, 0))
    for stale in (False, True):
        assert chosen(steps(0.01, 10 * full, stale=stale), even(RANKS, 1e6)).codec == "none"
        assert chosen(steps(0.01, full // 10, stale=stale), even(RANKS, 1e6)).codec != "none"


def test_stale_halo_rows_that_hide_are_not_in_the_way() -> None:
    """Behind much computation the same halo rows cost nothing, and gradients are all that is waited for."""
    wires = even(RANKS, 1e7)
    alone = chosen(steps(2.0, 0, stale=True), wires)
    beside = chosen(steps(2.0, 200_000, stale=True), wires)
    for spec in CODECS:
        assert beside.step_s[spec] == pytest.approx(alone.step_s[spec], rel=0.02)


def test_a_codec_that_takes_as_long_as_it_saves_is_none() -> None:
    slow = {spec: CodecSeconds(1e-4, 1e-4, 1e-4) for spec in CODECS}
    assert chosen(steps(0.1, 1000), even(RANKS, 1e6), Measured(SIZES, slow)).codec == "none"


def test_a_prediction_does_not_argue_with_a_measurement() -> None:
    found = choose(steps(0.1, 1000), [0, 1], even(RANKS, 1e6), MEASURED, cores=None, measured_s=0.1)
    assert found.codec == "none"


@pytest.mark.parametrize("spec", [*CODECS, "sign", "topk:0.01", "randomk:0.1"])
def test_scripts_send_to_the_byte_what_the_door_will_count(spec: str) -> None:
    measured = Measured(SIZES, {spec: CodecSeconds() for spec in (*CODECS, "sign", "topk:0.01", "randomk:0.1")})
    scripts = steps(0.1, 1000)
    free = bytes_of(with_codec(scripts, measured, ""), [0, 1])
    coded = with_codec(scripts, measured, spec)
    assert bytes_of(coded, [0, 1]) - free == sent_bytes(SIZES, spec, RANKS)
    assert bytes_of(scripts, [0, 1]) - free == sent_bytes(SIZES, "none", RANKS)
    assert len(replay(coded, even(RANKS, 1e8), cores=1)) == 2
    assert Measured.from_json(measured.to_json()) == measured


def test_what_is_chosen_is_judged_by_what_it_was_chosen_for() -> None:
    choice = chosen(steps(0.1, 1000), even(RANKS, 1e6))
    plan = plan_of(choice, [[("a", 60_000), ("b", 40_000)]], RANKS, 0)
    assert plan.predicted is not None
    assert plan.predicted.step_s == choice.step_s[choice.codec]
    assert set(plan.rivals) == {"none", "bfloat16"}
    assert Verdict(plan).milder == "bfloat16"
    assert [group.codec for group in plan.groups] == [choice.codec]
