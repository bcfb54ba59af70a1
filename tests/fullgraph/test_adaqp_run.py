"""AdaQP in a run: what is traced, assigned and obeyed; the edges; that it repeats, and learns."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fullgraph import work
from tests.fullgraph.work import Case
from thinwire import graphs, launch
from thinwire.codecs import Uniform, variances
from thinwire.fullgraph import METHODS, AdaQP, Exact, Sylvie
from thinwire.fullgraph.aggregate import Adjacency
from thinwire.fullgraph.curve import Curve
from thinwire.fullgraph.methods.adaqp import FIRST_BITS
from thinwire.fullgraph.trace import Trace
from thinwire.training.job import Job
from thinwire.training.method import parse

DATA = "synthetic:nodes=600,degree=10,classes=4,features=12,noise=2,label_noise=0"
METHOD = AdaQP(assign_every=4, sync_every=3)


def test_what_each_epoch_is_for() -> None:
    adaqp = AdaQP(assign_every=10, sync_every=6)
    assert [epoch for epoch in range(30) if adaqp.assigns(epoch)] == [9, 19, 29]
    assert [epoch for epoch in range(20) if adaqp.traces(epoch)] == [9, 19]
    assert [epoch for epoch in range(20) if adaqp.remembers(epoch)] == [6, 16]  # 3 epochs before: the mean age
    assert [epoch for epoch in range(20) if adaqp.sends_all(epoch)] == [0, 5, 10, 11, 17]
    assert adaqp.share_that_sends_all(10) == 0.3
    assert AdaQP(assign_every=1).mean_age == AdaQP(sync_every=1).mean_age == 0
    overlap = AdaQP(only="overlap")
    assert not any(overlap.assigns(epoch) or overlap.traces(epoch) for epoch in range(40))
    for other in (Exact(), Sylvie(), overlap):
        assert not any(other.sends_all(epoch) for epoch in range(40))
        assert other.trace() is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits_choice": (3,)}, "give one of 0, 1, 2"),
        ({"bits_choice": (0,)}, "give some of 1, 2"),
        ({"sync_every": 0}, "leave 0 out"),
        ({"assign": "magic"}, "give one of trade"),
        ({"assign_every": 0}, "give 1 or more"),
        ({"balance": 1.5}, "give 0"),
        ({"weigh": "x"}, "give one of squares"),
        ({"only": "x"}, "give one of"),
    ],
)
def test_what_adaqp_can_not_do(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaQP(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2,4,8"):
        parse("adaqp --bits-choice 2;4", METHODS)


def test_a_row_that_is_not_sent_stays_what_it_was_until_all_are() -> None:
    for seen in launch.run(work.rows_at_bits, workers=2):
        assert seen == [[0.0, 0.0], [0.0, 1.0], [2.0, 2.0], [2.0, 3.0]]


def test_a_curve_is_the_best_there_is_where_its_steps_end() -> None:
    randomness = np.random.default_rng(3)
    sizes = np.array([3.0, 4.0, 6.0, 11.0])
    for _ in range(40):
        errors = randomness.uniform(0, 1, (4, 4))
        curve = Curve.of(sizes, errors)
        every = [
            (sizes[list(chosen)].sum(), errors[np.arange(4), list(chosen)].sum())
            for chosen in itertools.product(range(4), repeat=4)
        ]
        for size, variance in zip(curve.bytes, curve.variance, strict=True):
            assert min(v for s, v in every if s <= size + 1e-9) == pytest.approx(variance)
            taken = curve.within(size)
            chosen = taken.choices()
            assert sizes[chosen].sum() == pytest.approx(taken.bytes)
            assert errors[np.arange(4), chosen].sum() == pytest.approx(taken.variance)
        assert np.all(np.diff(curve.step_gain / curve.step_bytes) <= 1e-12)
    with pytest.raises(ValueError, match="rising"):
        Curve.of([2.0, 1.0], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="not finite"):
        Curve.of([1.0, 2.0], np.full((1, 2), np.nan))


def test_traced_errors_are_what_decoding_adds() -> None:
    trace = Trace(AdaQP(assign_every=4, sync_every=4, bits_choice=(0, 1, 4, 32)))
    early = torch.randn(5, 64)
    late = early + 0.1
    for epoch, rows in enumerate((early, early, late, late)):
        trace.going(rows, epoch)
    errors = trace.errors((0, 1, 4, 32))
    draws = torch.stack([Uniform(4).decode(Uniform(4).encode(late, seed=s), late.shape, seed=s) for s in range(400)])
    measured = (draws - late).square().sum(dim=2).mean(dim=0)
    torch.testing.assert_close(errors[:, 2], measured, rtol=0.1, atol=0)
    lag = variances(late, (FIRST_BITS,))[:, 0] + 64 * 0.01 * 5 * 4  # of five rows, in four epochs, all one way
    torch.testing.assert_close(errors[:, 0], lag, rtol=1e-4, atol=0)
    assert torch.equal(errors[:, 3], torch.zeros(5))


def test_weights_of_messages_are_sums_over_the_rows_that_read_them() -> None:
    matrix = torch.tensor([[0.5, 0.0, 2.0], [0.25, 3.0, 0.0]])
    rows, columns = matrix.nonzero(as_tuple=True)
    indptr = torch.tensor([0, 2, 4])
    adjacency = Adjacency.of(indptr, columns, matrix[rows, columns], 3)
    torch.testing.assert_close(adjacency.column_sums(2), matrix.square().sum(dim=0))
    torch.testing.assert_close(adjacency.column_sums(1), matrix.sum(dim=0))


def test_assigned_obeyed_and_learnt() -> None:
    """Bytes are as predicted, to the byte; all ranks hold the same plan; overlap changes nothing but time."""
    both = Case(DATA, "sage", epochs=12, method=METHOD, lr=0.1, slow_rank=2)
    cases = [
        both,
        replace(both, method=replace(METHOD, only="quantize")),
        Case(DATA, "sage", epochs=12, method=AdaQP(only="overlap"), lr=0.1),
        Case(DATA, "sage", epochs=12, method=Exact(), lr=0.1),
        Case(DATA, "gat", epochs=8, method=METHOD, lr=0.1, slow_rank=2),
        Case(DATA, "sage", epochs=8, method=AdaQP(assign_every=4, assign="hide"), lr=0.1),
        Case(DATA, "sage", epochs=8, method=AdaQP(assign_every=4, assign="random"), lr=0.1),
        Case(DATA, "sage", epochs=8, method=AdaQP(assign_every=4, bits_choice=(4,)), lr=0.1),
    ]
    ranks = launch.run(work.on_shards, cases, workers=3)
    first = ranks[0]
    adaqp, quantize, overlap, exact, gat, hide, drawn, even = first
    assert torch.equal(adaqp.losses, quantize.losses)
    assert torch.equal(overlap.losses, exact.losses)
    assert not torch.equal(adaqp.losses, exact.losses)
    torch.testing.assert_close(adaqp.losses, exact.losses, rtol=0.02, atol=0)
    assert [record["from_epoch"] for record in adaqp.records] == [4, 8, 12]
    for case_number in range(len(cases)):
        for other in ranks[1:]:
            messages = [record["messages"] for record in other[case_number].records]
            assert messages == [record["messages"] for record in first[case_number].records]
    for channel, width in (("convs.1.forward", 16), ("convs.2.backward", 4)):
        rows = sum(result[0].send_rows if "forward" in channel else result[0].halo_rows for result in ranks)
        predicted = [next(m for m in r["messages"] if m["channel"] == channel) for r in adaqp.records[:2]]
        # Epochs 0 to 3 at 8 bits; then as predicted for each period, refreshing included.
        expected = 4 * rows * (width + 4) + 4 * sum(entry["predicted_bytes"] for entry in predicted)
        assert sum(result[0].bytes_to[channel] for result in ranks) == pytest.approx(expected, abs=16)
        assert all(sum(entry["rows_at_bits"].values()) == rows for entry in predicted)
        assert all(0 <= entry["gap"] < 0.02 for entry in predicted)
    # A host whose wires are ten times slower gets thinner messages.
    for message in adaqp.records[0]["messages"]:
        matrix = np.array(message["bytes_from_to"])
        slow = matrix[2].sum() + matrix[:, 2].sum()
        fast = matrix[0, 1] + matrix[1, 0]
        assert slow / 4 < fast / 2
    assert len(gat.records) == len(hide.records) == 2
    assert len(drawn.records[0]["messages"][0]["rows_at_bits"]) == 7
    assert [message["rows_at_bits"].keys() for message in even.records[0]["messages"]] == [{"4": 0}.keys()] * 4


def test_edges() -> None:
    """A pair without shared rows, a part without central rows, one without marginal ones, nodes that are all alike."""
    method = AdaQP(assign_every=2, sync_every=2)
    usual = Case(DATA, "sage", epochs=6, method=method, lr=0.1)
    cases = [
        replace(usual, kind="gcn", more=("chain",)),
        replace(usual, more=("chain",), method=replace(method, assign="hide")),
        replace(usual, more=("alone",)),
        replace(usual, kind="gat", more=("alone",)),
        replace(usual, more=("constant",)),
        replace(
            usual, data=DATA.replace("degree=10", "degree=40"), kind="gat", method=replace(method, assign="random")
        ),
    ]
    ranks = launch.run(work.on_shards, cases, workers=3)
    for result in ranks[0]:
        assert torch.isfinite(result.losses).all()
        assert len(result.records) == 3
    chain, alone, dense = ranks[0][0], ranks[2][3], ranks[0][5]
    assert all(message["bytes_from_to"][0][2] == 0 for message in chain.records[0]["messages"])
    assert 0 < alone.owned == alone.central
    assert dense.owned > 0
    assert dense.central == 0


def test_constant_rows_cost_nothing_and_get_the_fewest_bytes() -> None:
    trace = Trace(AdaQP(assign_every=1, bits_choice=(1, 4)))
    trace.going(torch.full((3, 20), 2.5), 0)
    errors = trace.errors((1, 4))
    assert torch.equal(errors, torch.zeros(3, 2))
    curve = Curve.of([7.0, 14.0], errors.double().numpy())
    assert curve.within(1e9).choices().tolist() == [0, 0, 0]


def test_one_worker_has_nothing_to_assign() -> None:
    (result,) = launch.run(work.on_shards, [Case(DATA, "sage", epochs=6, method=METHOD)], workers=1)[0]
    exact = work.in_one(Case(DATA, "sage", epochs=6)).losses
    torch.testing.assert_close(result.losses, exact, rtol=1e-5, atol=0)
    assert not result.records


def test_resumed_in_the_middle_of_a_period_the_losses_are_the_same_bits(tmp_path: Path) -> None:
    """Bits, copies of rows that are not sent, and what was traced go into a checkpoint."""
    graphs.prepare(DATA, graphs.Settings(2), tmp_path / "shards")
    for name in ("whole", "part0", "part1", "own"):
        (tmp_path / name).mkdir()
    cost = work.cost_of(Case(DATA, "sage", slow_rank=0), 2)
    assert cost is not None
    (tmp_path / "profile.json").write_text(json.dumps(cost.to_json()))
    whole = Job(
        method=AdaQP(assign_every=6, sync_every=6),
        data=DATA,
        shards=str(tmp_path / "shards"),
        hidden=16,
        epochs=22,
        profile=str(tmp_path / "profile.json"),
        checkpoint_every=5,
        gradients="none",  # what `auto` chooses would be a plan file too
        out=str(tmp_path / "whole"),
    )
    # Rows are remembered in epoch 14 and looked at in 17.
    todo = [whole]
    for number, stop in enumerate((15, 18)):
        begun = replace(whole, epochs=stop, out=str(tmp_path / f"part{number}"))
        todo += [begun, replace(begun, epochs=22, resume=True)]
    # Without a profile the wires are measured, once: a checkpoint from before the first choice of bits has them.
    measured_here = replace(whole, profile="", out=str(tmp_path / "own"), method=AdaQP(assign_every=18, sync_every=6))
    todo += [measured_here, replace(measured_here, resume=True, resume_epoch="15")]
    *losses, first, again = launch.run(work.jobs, todo, workers=2)[0]
    for part in losses[1:]:
        assert part == losses[0][: len(part)]
    assert len(losses[2]) == len(losses[4]) == 22
    assert first == again
    plans = [json.loads((tmp_path / "part0" / f"plan.{number}.json").read_text()) for number in (1, 2, 3)]
    assert [plan["from_epoch"] for plan in plans] == [6, 12, 18]
    assert any("0" in message["rows_at_bits"] for plan in plans for message in plan["messages"])
