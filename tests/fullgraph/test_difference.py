"""Difference coding: both ends hold the same rows, errors are made up for, and bytes are known beforehand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.fullgraph import work
from tests.fullgraph.work import Case
from thinwire import launch
from thinwire.codecs import Budget, Centred, Nearest, Uniform
from thinwire.fullgraph import Exact, Method, Sylvie
from thinwire.fullgraph.copies import FIRST, MOST_AGE, Copies
from thinwire.fullgraph.dropout import Drop, drop_of, mark
from thinwire.training.job import Job

DATA = "synthetic:nodes=600,degree=10,classes=4,features=12,noise=2,label_noise=0"
ONE_BIT = Sylvie(code="difference", staleness=0)
HALF = Sylvie(budget=0.5, staleness=0)
RANKS = 3


@pytest.mark.parametrize("method", [ONE_BIT, HALF, Sylvie(budget=0.5)], ids=lambda m: m.words())
def test_both_ends_hold_the_same_rows(method: Sylvie) -> None:
    cases = [Case(DATA, kind, ("dropout",), epochs=8, method=method, lr=0.1) for kind in ("sage", "gat")]
    for ranks in zip(*launch.run(work.held_rows, cases, workers=RANKS), strict=True):
        for channel in ranks[0].sent:
            for owner in range(RANKS):
                for reader in range(RANKS):
                    sent, held = ranks[owner].sent[channel][reader], ranks[reader].held[channel][owner]
                    assert torch.equal(sent, held)
        assert any(len(part) for part in ranks[0].sent["convs.1.forward"])


@pytest.mark.parametrize("method", [ONE_BIT, HALF], ids=lambda m: m.words())
def test_bytes_are_known_beforehand(method: Sylvie) -> None:
    epochs, width = 5, 16
    case = Case(DATA, "sage", epochs=epochs, method=method, lr=0.1)
    codec = Centred(Budget(0.5) if method.budget else Nearest(1))
    for [result], [shard] in zip(
        launch.run(work.on_shards, [case], workers=RANKS),
        launch.run(work.shards_of, [case], workers=RANKS),
        strict=True,
    ):
        first = sum(FIRST.nbytes((count, width)) for count in shard.send_to)
        later = sum(codec.nbytes((count, width)) for count in shard.send_to)
        assert result.bytes_to["convs.1.forward"] == first + (epochs - 1) * later


def test_training_is_as_good_as_exact() -> None:
    """At half a bit a value, where plain one-bit messages leave a higher loss."""
    methods = (Exact(), ONE_BIT, HALF, Sylvie(staleness=0))
    cases = [Case(DATA, "gcn", epochs=60, method=method, lr=0.1) for method in methods]
    exact, one_bit, half, plain = (
        float(result.losses[-1]) for result in launch.run(work.on_shards, cases, workers=2)[0]
    )
    assert one_bit < exact + 0.2 * (plain - exact)
    assert half < exact + 0.5 * (plain - exact)


def test_rows_that_stand_still_cost_no_error() -> None:
    """Also behind a dropout: rows travel as they were before it. What earlier dropouts do to them is sent."""
    methods = (Exact(), ONE_BIT, Sylvie(staleness=0))
    cases = [Case(DATA, "sage", ("dropout",), epochs=10, method=method, lr=1e-9) for method in methods]
    exact, coded, plain = (result.losses for result in launch.run(work.on_shards, cases, workers=2)[0])
    assert exact.std() > 1e-3  # masks change from epoch to epoch
    assert (coded - exact).square().mean() < 0.3 * (plain - exact).square().mean()


def test_resumed_the_losses_are_the_same_bits(tmp_path: Path) -> None:
    graph = "synthetic:nodes=800,classes=4"
    todo = []
    for number, method in enumerate((ONE_BIT, Sylvie(budget=0.5))):
        out = str(tmp_path / str(number))
        job: Job[Method] = Job(
            method, graph, hidden=16, dropout=0.3, epochs=8, out=out, checkpoint_every=4, evaluate_every=8
        )
        todo += [job, replace(job, resume=True, resume_epoch="4")]
    for whole, resumed in batched(launch.run(work.jobs, todo, workers=2)[0]):
        assert resumed == whole


def batched(losses: list[list[float]]) -> list[tuple[list[float], list[float]]]:
    return list(zip(losses[::2], losses[1::2], strict=True))


def test_a_tensor_that_was_written_to_has_no_dropout() -> None:
    source = torch.rand(4, 3)
    out = source * 2
    drop = Drop(source, 0.5, 1)
    mark(out, drop)
    assert drop_of(out) is drop
    out += 1
    assert drop_of(out) is None
    mark(out, drop)
    source += 1
    assert drop_of(out) is None
    assert drop_of(out.clone()) is None


def test_no_row_is_older_than_the_bound() -> None:
    torch.manual_seed(0)
    copies, codec = Copies(), Centred(Budget(0.2))
    scales = torch.logspace(-4, 0, 200)[:, None]  # the slowest rows would never be worth their bytes
    rows = torch.randn(200, 32)
    copies.first([rows], [0])
    oldest = 0
    for _ in range(3 * MOST_AGE):
        rows = rows + scales * torch.randn(200, 32)
        copies.differences([rows], [codec], [0])
        assert copies.ages is not None
        oldest = max(oldest, int(copies.ages.max()))
    assert MOST_AGE // 2 < oldest <= MOST_AGE


def test_the_first_message_is_eight_bits() -> None:
    copies, rows = Copies(), torch.randn(6, 10)
    assert not copies.has(rows)
    [data] = copies.first([rows], [3])
    assert torch.equal(copies.rows, Uniform(8).decode(data, rows.shape))  # type: ignore[arg-type]
    assert copies.has(rows)
    assert not copies.has(rows[:, :5])


def test_a_budget_is_of_differences() -> None:
    assert Sylvie(budget=0.5).sends_differences
    with pytest.raises(ValueError, match="give mean bits a value up to 8"):
        Sylvie(budget=-1.0)
