"""A few epochs of every method on ranks that are here, with each step and transfer noted. What every rank does."""

import gc
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thinwire import fullgraph
from thinwire.bench import methods
from thinwire.links import Door
from thinwire.links.cost import CostModel
from thinwire.links.event_log import EventLog, Moment
from thinwire.links.exchange import LIMIT_S
from thinwire.links.quick_probe import quick_probe
from thinwire.prediction.memory import peak_bytes, reset_peak
from thinwire.prediction.script import Script, script, steadied
from thinwire.training.job import Job
from thinwire.training.own_shard import own_shard
from thinwire.training.run import Run

CHANNEL = "recording"
METHODS = ("exact", "pipe", "sylvie --staleness 0", "sylvie", "adaqp", "salient")
MANY = 1 << 20  # epochs, more than there will be
# Epochs before those that are noted, and of those.
WARM, NOTED = 2, 5


@dataclass(frozen=True)
class Recording:
    """One method's: every rank's script, and what an epoch counts in the mean of many."""

    method: str
    scripts: list[Script]
    weights: list[float]
    bytes_per_epoch: int
    memory_bytes: int  # of the rank with the most
    more_s: float = 0.0  # an epoch, in the mean: choosing bits


def record(
    names: Sequence[str],
    settings: dict[str, Any],
    seed: int,
    shards: str,
    profile: str,
    limit_s: float = LIMIT_S,
) -> tuple[list[Recording], CostModel]:
    """The same on every rank; and the wires between these ranks. `profile` is of the wires that there will be."""
    jobs = {
        name: replace(methods.job_of(name, settings, seed), shards=shards, profile=profile, epochs=MANY)
        for name in names
    }
    first = next(iter(jobs.values()))
    with Door(limit_s=limit_s) as door, own_shard(first, door) as (shard, manifest):
        found = []
        for name, job in jobs.items():
            reset_peak()
            run = methods.run_of(job, shard, door, manifest)
            found.append(_recorded(name, job, run, door))
            del run
            gc.collect()  # models and their hooks know each other; the next one's memory is its own
        return found, quick_probe(door, shard.x.device)


def _recorded(name: str, job: Job[Any], run: Run, door: Door) -> Recording:
    # A pipeline of batches is empty at first and runs dry at the end.
    first, weights = 0, [0.0, 1.0, 1.0, 0.0]
    if isinstance(job.plan, fullgraph.Plan):
        first, weights = window(job.plan)
        run.distributed.restore(first - 1, {})  # type: ignore[attr-defined]
    before = WARM + (job.plan.mean_age if getattr(job.plan, "adapts", False) else 0)
    run.horizon = first + before + len(weights)
    for epoch in range(first, first + before):
        run.step(epoch)
    door.barrier(channel=CHANNEL)  # all begin together
    door.books.take()
    busy_s, event_log = time.process_time(), EventLog()
    door.books.event_log = event_log
    ends = []
    for epoch in range(first + before, first + before + len(weights)):
        run.step(epoch)
        ends.append(Moment.now())
    run.settle()
    door.books.event_log = None
    sent = sum(book.bytes_sent for book in door.books.take().values())
    beside_s = max(0.0, time.process_time() - busy_s - (time.thread_time() - event_log.begun.computed_s))
    own = steadied(script(event_log, ends, by_wall=torch.get_num_threads() > 1, beside_s=beside_s / max(1, sent)))
    gathered = door.gather_json([own.to_json(), _bytes(own, weights), peak_bytes(), _assign_s(run)], channel=CHANNEL)
    return Recording(
        name,
        [Script.from_json(each[0]) for each in gathered],
        weights,
        sum(each[1] for each in gathered),
        max(each[2] for each in gathered),
        max(each[3] for each in gathered),
    )


def window(plan: fullgraph.Plan) -> tuple[int, list[float]]:
    """Where to begin, and what each noted epoch counts for.

    Where epochs wait for what was sent before them, the first waits for nothing, as that was not noted, and the second
    for two: neither counts. One that waits for all, the one after it, or one that sends all, counts for as many as
    there are of those in a period.
    """
    if plan.adapts:
        # From the choice of bits on; its first epoch sends all rows.
        periods = math.ceil((WARM + plan.mean_age) / plan.assign_every)
        share = plan.refreshed_share(plan.assign_every)
        return periods * plan.assign_every - WARM - plan.mean_age, [share, *_even(1 - share)]
    if not plan.may_be_stale:
        return 0, _even(1.0)
    if not plan.sync_every:
        return 0, [0.0, 0.0, *_even(1.0)]
    turn = next(epoch for epoch in range(WARM + 3, MANY) if not plan.is_stale(epoch))
    kinds = [_kind(plan, epoch) for epoch in range(turn, turn + 2 + NOTED)]
    often = Counter(_kind(plan, epoch) for epoch in range(turn, turn + plan.sync_every))
    shares = {kind: often[kind] / (kinds.count(kind) * plan.sync_every) for kind in often}
    return turn - WARM - 2, [0.0, 0.0, *(shares[kind] for kind in kinds)]


def _kind(plan: fullgraph.Plan, epoch: int) -> tuple[bool, bool]:
    """Whether it is stale, and the one before it."""
    return plan.is_stale(epoch), plan.is_stale(epoch - 1)


def _even(share: float) -> list[float]:
    return [max(0.0, share) / NOTED] * NOTED


def _bytes(own: Script, weights: Sequence[float]) -> int:
    """That this rank sends in an epoch, in the mean."""
    total = 0.0
    for steps, weight in zip(own.epochs, weights, strict=True):
        posted = [name for kind, _, name in steps if kind == "post"]
        total += weight * sum(sum(own.operations[name].bytes_to.values()) for name in posted)
    return int(total / sum(weights))


def _assign_s(run: Run) -> float:
    """What choosing bits took, spread over the epochs that it is for."""
    records = run.distributed.assigner.records if hasattr(run, "distributed") else []
    return sum(each["assign_s"] + each["trace_s"] for each in records) / max(
        1, getattr(run.job.plan, "assign_every", 1)
    )
