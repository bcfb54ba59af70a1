"""Sylvie and its neighbour: which epochs are stale, which rows come out, what crosses the wire, and that it learns."""

import pytest
import torch

from tests.fullgraph import work
from tests.fullgraph.work import Case
from thinwire import launch
from thinwire.codecs import Uniform
from thinwire.fullgraph import METHODS, Exact, Pipe, Sylvie
from thinwire.training.method import parse

DATA = "synthetic:nodes=600,degree=10,classes=4,features=12,noise=2,label_noise=0"


def test_the_bounded_staleness_adaptor() -> None:
    bounded = Sylvie(sync_every=5)
    assert [epoch for epoch in range(12) if not bounded.is_stale(epoch)] == [0, 4, 9]
    assert [epoch for epoch in range(12) if not Pipe(sync_every=0).is_stale(epoch)] == [0]
    assert not any(Sylvie(staleness=0).is_stale(epoch) for epoch in range(12))
    assert not any(Sylvie(sync_every=1).is_stale(epoch) for epoch in range(12))
    assert not any(Exact().is_stale(epoch) for epoch in range(12))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("magic", "give one of exact, pipe, sylvie"),
        ("sylvie --bits 3", "--bits 3; give one of 1, 2, 4, 8"),
        ("sylvie --staleness 2", "--staleness 2; give one of 0, 1"),
        ("sylvie --sync-every -1", "sync_every is -1; give 0"),
        ("pipe --sync-every -1", "sync_every is -1; give 0"),
    ],
)
def test_what_they_can_not_do(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(words, METHODS)


@pytest.mark.parametrize(("option", "value"), [("bits", 3), ("staleness", 2)])
def test_choices_are_checked_in_python_too(option: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value}; give one of"):
        Sylvie(**{option: value})  # type: ignore[arg-type]


def test_a_stale_epoch_has_the_rows_of_the_one_before() -> None:
    for seen in launch.run(work.stale_rows, workers=2):
        assert seen == [[0.0], [0.0], [1.0], [3.0], [3.0], [4.0]]


def test_one_bit_crosses_in_its_exact_size_and_learns() -> None:
    case = Case(DATA, "sage", epochs=40, method=Sylvie(staleness=0), lr=1.0)
    results = [results_there[0] for results_there in launch.run(work.on_shards, [case], workers=2)]
    codec = Uniform(1)
    for result in results:
        # Widths: 16 into the second layer, and the 4 classes instead of 24 into the last.
        assert result.bytes_to["convs.1.forward"] == case.epochs * codec.nbytes((result.send_rows, 16))
        assert result.bytes_to["convs.2.forward"] == case.epochs * codec.nbytes((result.send_rows, 4))
        assert result.bytes_to["convs.1.backward"] == case.epochs * codec.nbytes((result.halo_rows, 16))
        assert result.bytes_to["convs.0.exact"] == 4 * 12 * result.send_rows
        assert result.losses[-1] < 0.7 * result.losses[0]
    first, second = results
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_runs_repeat_bit_for_bit_and_differ_by_seed() -> None:
    cases = [
        Case(DATA, kind, ("dropout",), epochs=6, method=Sylvie(), seed=seed, lr=0.5)
        for kind in ("gcn", "gat")
        for seed in (1, 1, 2)
    ]
    results_there = launch.run(work.on_shards, cases, workers=2)[0]
    again = launch.run(work.on_shards, cases, workers=2)[0]
    assert all(torch.equal(first.losses, second.losses) for first, second in zip(results_there, again, strict=True))
    for first, second, other in (results_there[:3], results_there[3:]):
        assert torch.equal(first.losses, second.losses)
        assert not torch.equal(first.losses, other.losses)


def test_stale_float32_that_synchronises_always_is_exact() -> None:
    methods = (Exact(), Pipe(sync_every=1), Pipe(sync_every=0))
    cases = [Case(DATA, kind, epochs=8, method=method, lr=0.5) for kind in ("sage", "gat") for method in methods]
    results_there = launch.run(work.on_shards, cases, workers=2)[1]
    for exact, pipe, stale in (results_there[:3], results_there[3:]):
        assert torch.equal(exact.losses, pipe.losses)
        assert torch.equal(exact.logits, pipe.logits)
        assert torch.equal(exact.losses[:1], stale.losses[:1])
        assert not torch.equal(exact.losses[1:], stale.losses[1:])
        assert stale.losses[-1] < stale.losses[0]
