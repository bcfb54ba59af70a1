"""Difference coding: both ends hold the same rows, errors are made up for, and bytes are known beforehand."""

import pytest
import torch

from tests.fullgraph import work
from tests.fullgraph.work import Case
from thinwire import launch
from thinwire.codecs import Budget, Nearest, Uniform
from thinwire.fullgraph import Exact, Sylvie
from thinwire.fullgraph.copies import FIRST, MOST_AGE, Copies

DATA = "synthetic:nodes=600,degree=10,classes=4,features=12,noise=2,label_noise=0"
ONE_BIT = Sylvie(code="difference", staleness=0)
HALF = Sylvie(code="difference", budget=0.5, staleness=0)
RANKS = 3


@pytest.mark.parametrize("method", [ONE_BIT, HALF, Sylvie(code="difference", budget=0.5)], ids=lambda m: m.words())
def test_both_ends_hold_the_same_rows(method: Sylvie) -> None:
    cases = [Case(DATA, kind, "dropout", epochs=8, method=method, lr=0.1) for kind in ("sage", "gat")]
    for found in zip(*launch.run(work.held_rows, cases, workers=RANKS), strict=True):
        for channel in found[0].sent:
            for owner in range(RANKS):
                for reader in range(RANKS):
                    sent, held = found[owner].sent[channel][reader], found[reader].held[channel][owner]
                    assert torch.equal(sent, held)
        assert any(len(part) for part in found[0].sent["convs.1.forward"])


@pytest.mark.parametrize("method", [ONE_BIT, HALF], ids=lambda m: m.words())
def test_bytes_are_known_beforehand(method: Sylvie) -> None:
    epochs, width = 5, 16
    case = Case(DATA, "sage", epochs=epochs, method=method, lr=0.1)
    codec = Budget(0.5) if method.budget else Nearest(1)
    for [found], [shard] in zip(
        launch.run(work.on_shards, [case], workers=RANKS), launch.run(work.shards_of, [case], workers=RANKS), strict=True
    ):
        first = sum(FIRST.nbytes((count, width)) for count in shard.send_to)
        later = sum(codec.nbytes((count, width)) for count in shard.send_to)
        assert found.bytes_to["convs.1.forward"] == first + (epochs - 1) * later


def test_training_is_as_good_as_exact() -> None:
    """At half a bit a value, where plain one-bit messages leave a higher loss."""
    methods = (Exact(), ONE_BIT, HALF, Sylvie(staleness=0))
    cases = [Case(DATA, "gcn", epochs=60, method=method, lr=0.1) for method in methods]
    exact, one_bit, half, plain = (float(found.losses[-1]) for found in launch.run(work.on_shards, cases, workers=2)[0])
    assert one_bit < exact + 0.2 * (plain - exact)
    assert half < exact + 0.5 * (plain - exact)


def test_rows_that_stand_still_arrive_exactly() -> None:
    """Also behind dropout: rows travel as they were before it, and the readers drop the same values."""
    methods = (Exact(), ONE_BIT)
    cases = [Case(DATA, "sage", "dropout", epochs=25, method=method, lr=1e-9) for method in methods]
    exact, coded = launch.run(work.on_shards, cases, workers=2)[0]
    assert exact.losses.std() > 1e-3  # masks change from epoch to epoch
    assert (coded.losses - exact.losses).abs()[0] > 1e-5
    torch.testing.assert_close(coded.losses[-5:], exact.losses[-5:], rtol=1e-5, atol=1e-6)


def test_no_row_is_older_than_the_bound() -> None:
    torch.manual_seed(0)
    copies, codec = Copies(), Budget(0.2)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [({"budget": 0.5}, "add --code difference"), ({"budget": -1.0, "code": "difference"}, "up to 8")],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sylvie(**options)  # type: ignore[arg-type]
