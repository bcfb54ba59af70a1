"""Sylvie 3D-adaptive: bits by degree on both ends, the base by the loss, fresh rows after a change, resumed alike."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.fullgraph import work, work_adaptive
from tests.fullgraph.work import Case
from thinwire import graphs, launch
from thinwire.codecs import Mixed, Uniform
from thinwire.fullgraph import Method, Sylvie3D
from thinwire.fullgraph.adapter import BEGINS, FELL, ROSE, Adapter
from thinwire.fullgraph.methods.sylvie3d import LOOKED_AT, SKIPPED, WIDTHS, Speed, bits_by_degree, widths_from
from thinwire.links import Door
from thinwire.training.job import Job

DATA = "synthetic:nodes=600,degree=10,classes=4,features=12,noise=2,label_noise=0"
RANKS = 3
# The epochs whose losses lead to a first change.
FIRST = SKIPPED + LOOKED_AT


@pytest.mark.parametrize("base", WIDTHS)
def test_equal_parts_of_the_degrees_get_rising_bits(base: int) -> None:
    widths = widths_from(base)
    assert widths == {1: (1, 2, 4, 8), 2: (2, 4, 8), 4: (4, 8), 8: (8,)}[base]
    for rows in (0, 1, 7, 8, 9, 240):
        degrees = torch.randperm(rows) + 3
        bits = bits_by_degree(degrees, base)
        assert bits.dtype == torch.uint8
        in_order = bits[degrees.argsort()].tolist()
        assert in_order == sorted(in_order)
        assert not rows or in_order[-1] == 8
        # At the edge of two parts a row counts to the upper one.
        parts = [sum(len(widths) * (place + 1) // rows == part for place in range(rows)) for part in range(len(widths))]
        parts[-1] += rows - sum(parts)
        assert [in_order.count(width) for width in widths] == parts


@pytest.mark.parametrize("base", WIDTHS)
def test_equal_degrees_get_equal_bits_by_the_share_that_has_no_more(base: int) -> None:
    degrees = torch.randint(1, 9, (200,), dtype=torch.int32)
    widths, bits = widths_from(base), bits_by_degree(degrees, base)
    for degree in degrees.unique():
        share = float((degrees <= degree).double().mean())
        expected = widths[min(math.floor(share * len(widths)), len(widths) - 1)]
        assert bits[degrees == degree].unique().tolist() == [expected]


def test_both_ends_take_the_same_widths() -> None:
    shards = [work.shard_of(Case(DATA, "sage", ("chain",)), rank, RANKS)[0] for rank in range(RANKS)]
    for base in WIDTHS:
        codecs = [Adapter(cast(Door, None), shard, Sylvie3D(base=base)).codecs() for shard in shards]  # type: ignore[arg-type]
        for owner in range(RANKS):
            for reader in range(RANKS):
                out, into = codecs[owner].out[reader], codecs[reader].into[owner]
                assert isinstance(out, Mixed)
                assert isinstance(into, Mixed)
                assert len(out.bits) == shards[owner].send_to[reader]
                assert torch.equal(out.bits, into.bits)
        assert {int(bits) for codec in codecs[1].out for bits in cast(Mixed, codec).bits} == set(widths_from(base))


def bases(losses: Sequence[float], base: int, elapsed: Sequence[float] | None = None) -> list[int]:
    """The base after each epoch of these losses."""
    speed, chosen = Speed(), []
    for loss, took in zip(losses, elapsed or [1.0] * len(losses), strict=True):
        speed.add(loss, took)
        base = speed.base(base)
        chosen.append(base)
    return chosen


def test_a_loss_that_slows_down_doubles_the_base() -> None:
    # Its smoothed speed falls from the beginning.
    losses = [2.0] + [1.0] * 60
    expected = [1] * (FIRST - 1) + [2] * LOOKED_AT + [4] * LOOKED_AT
    assert bases(losses, 1) == expected + [8] * (len(losses) - len(expected))


def test_a_loss_that_speeds_up_halves_the_base() -> None:
    losses = [10 - 0.002 * epoch**2 for epoch in range(40)]
    expected = [8] * (FIRST - 1) + [4] * LOOKED_AT + [2] * LOOKED_AT
    assert bases(losses, 8) == expected + [1] * (len(losses) - len(expected))


@pytest.mark.parametrize("base", WIDTHS)
@pytest.mark.parametrize("kind", ["flat", "uneven", "short"])
def test_what_shows_no_trend_changes_nothing(base: int, kind: str) -> None:
    losses = {
        "flat": [3.0] * 40,
        "uneven": [2.0 + (-1.0) ** epoch / (epoch + 1) * (1 + epoch % 3) for epoch in range(40)],
        "short": [2.0] + [1.0] * (FIRST - 2),
    }[kind]
    assert set(bases(losses, base)) == {base}


def test_by_the_clock_an_epoch_that_takes_longer_is_slower() -> None:
    steady = [2.0] + [1.0] * 30  # v falls by a tenth an epoch
    assert bases(steady, 2)[-1] == 8
    assert bases(steady, 2, [0.8**epoch for epoch in range(31)])[-1] == 1
    assert set(bases([3.0] * 31, 2, [0.8**epoch for epoch in range(31)])) == {2}


def test_a_change_is_waited_for_and_then_stale_only_where_the_base_fell() -> None:
    """Checked on the object that all ranks have; what it needs is kept in a checkpoint."""
    shard = work.shard_of(Case(DATA, "sage"), 0, 1)[0]
    for losses, base, mode in (([2.0] + [1.0] * 30, 4, False), ([9 - 0.002 * e**2 for e in range(31)], 2, True)):
        adapter, changed, last = Adapter(Alone(), shard, Sylvie3D(base=base, sync_every=0)), -1, base  # type: ignore[arg-type]
        for epoch, loss in enumerate(losses):
            kept = json.loads(json.dumps(adapter.state()))
            adapter = Adapter(Alone(), shard, Sylvie3D(sync_every=0))
            adapter.restore(kept, same=True)
            stale = mode if changed >= 0 else True
            assert adapter.is_stale(epoch) == (stale and epoch not in (0, changed))
            adapter.after_epoch([], epoch, 1.0, loss)
            assert adapter.event() == {"base_bits": last}
            if adapter.base != last:
                changed, last = epoch + 1, adapter.base
        assert (changed, last) == (FIRST, 8 if base == 4 else 1)


class Alone(Door):
    """A door of one rank, without a job."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1

    def gather(self, x: torch.Tensor | float, *, channel: str) -> torch.Tensor:
        return torch.as_tensor(x)[None]

    def all_reduce(self, x: torch.Tensor, *, channel: str) -> Any:
        return Done(x)


class Done:
    def __init__(self, result: torch.Tensor) -> None:
        self.wait = lambda: result


def test_never_stale_if_asked() -> None:
    assert not Sylvie3D(staleness=0).may_be_stale
    assert not any(Sylvie3D(staleness=0).is_stale(epoch) for epoch in range(20))
    assert [epoch for epoch in range(12) if not Sylvie3D(sync_every=5).is_stale(epoch)] == [0, 4, 9]
    assert Sylvie3D(base=8).message_bytes(40, 16) == Uniform(8).nbytes((40, 16))


def test_runs_obey_say_why_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    graphs.prepare(DATA, graphs.Settings(2), tmp_path / "shards")
    for name in ("rises", "falls", "part"):
        (tmp_path / name).mkdir()
    rises: Job[Method] = Job(
        method=Sylvie3D(sync_every=7),
        data=DATA,
        shards=str(tmp_path / "shards"),
        hidden=16,
        lr=0.03,
        gradients="none",
        epochs=22,
        evaluate_every=30,
        checkpoint_every=1,
        out=str(tmp_path / "rises"),
        events=str(tmp_path / "rises.jsonl"),
    )
    falls = replace(
        rises,
        method=Sylvie3D(base=8),
        lr=1e-4,
        optimizer="adam",
        out=str(tmp_path / "falls"),
        events=str(tmp_path / "falls.jsonl"),
    )
    first = replace(rises, epochs=FIRST + 3, out=str(tmp_path / "part"), events=str(tmp_path / "part.jsonl"))
    rest = replace(first, epochs=rises.epochs, resume=True)
    todo = [rises, falls, first, rest]
    own = Case(DATA, "sage", epochs=FIRST - 1 + LOOKED_AT, lr=0.5, method=Sylvie3D(base=2))
    ranks = launch.run(work_adaptive.results, todo, own, workers=2)
    for (whole, _, _, resumed), bases_there, said in ranks:
        assert resumed["losses"] == whole["losses"]
        assert bases_there == [2] * (FIRST - 1) + [4] * LOOKED_AT
        assert "rank 1 noted none in epoch 1; call model.distributed.note_loss(loss)" in said

    for name, reasons in {"rises": {BEGINS, ROSE}, "falls": {BEGINS, FELL}}.items():
        plans = sorted((tmp_path / name).glob("plan.*.json"), key=lambda path: int(path.name.split(".")[1]))
        records = [json.loads(path.read_text()) for path in plans]
        events = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert {record["why"] for record in records} == reasons
        sync_every = 7 if name == "rises" else 10
        for event in events:
            in_force = [record for record in records if record["from_epoch"] <= event["epoch"]][-1]
            assert event["base_bits"] == in_force["base_bits"]
            # To the byte, as long as nothing changes, and from the epoch of a change on.
            assert event["halo_bytes"] == in_force["predicted_bytes"]
            assert not event["epoch"] or event["predicted_halo_bytes"] == event["halo_bytes"]
            is_nth = (event["epoch"] + 1) % sync_every == 0
            is_fresh = event["epoch"] == in_force["from_epoch"]
            assert event["stale"] == (in_force["pipelined"] and not is_nth and not is_fresh)
        assert all(set(message["rows_at_bits"]) <= set("1248") for record in records for message in record["messages"])
    parts = [json.loads(path.read_text()) for path in sorted((tmp_path / "part").glob("plan.*.json"))]
    plans_of_whole = [json.loads(path.read_text()) for path in sorted((tmp_path / "rises").glob("plan.*.json"))]
    for part, right in zip(parts, plans_of_whole, strict=True):
        assert (part["from_epoch"], part["messages"]) == (right["from_epoch"], right["messages"])
