"""A few epochs of every method on ranks that are here, with each step and transfer noted. What every rank does."""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thinwire.bench import methods
from thinwire.links import Door
from thinwire.links.cost import CostModel
from thinwire.links.event_log import EventLog, Moment
from thinwire.links.exchange import LIMIT_S
from thinwire.links.quick_probe import quick_probe
from thinwire.prediction.memory import peak_bytes, reset_peak
from thinwire.prediction.script import Script, script, steadied
from thinwire.training.own_shard import own_shard
from thinwire.training.run import Run

CHANNEL = "recording"
MANY = 1 << 20  # epochs, more than there will be


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
            found.append(_recorded(name, run, door))
            del run
            gc.collect()  # models and their hooks know each other; the next one's memory is its own
        return found, quick_probe(door, shard.x.device)


def _recorded(name: str, run: Run, door: Door) -> Recording:
    window = run.window()
    run.begin_at(window.first)
    run.horizon = window.noted.stop
    for epoch in range(window.first, window.noted.start):
        run.step(epoch)
    door.barrier(channel=CHANNEL)  # all begin together
    door.books.take()
    busy_s, event_log = time.process_time(), EventLog()
    door.books.event_log = event_log
    ends = []
    for epoch in window.noted:
        run.step(epoch)
        ends.append(Moment.now())
    run.settle()
    door.books.event_log = None
    sent = sum(book.bytes_sent for book in door.books.take().values())
    beside_s = max(0.0, time.process_time() - busy_s - (time.thread_time() - event_log.begun.computed_s))
    own = steadied(script(event_log, ends, by_wall=torch.get_num_threads() > 1, beside_s=beside_s / max(1, sent)))
    gathered = door.gather_json(
        [own.to_json(), _bytes(own, window.weights), peak_bytes(), run.choosing_s()], channel=CHANNEL
    )
    return Recording(
        name,
        [Script.from_json(each[0]) for each in gathered],
        window.weights,
        sum(each[1] for each in gathered),
        max(each[2] for each in gathered),
        max(each[3] for each in gathered),
    )


def _bytes(own: Script, weights: Sequence[float]) -> int:
    """That this rank sends in an epoch, in the mean."""
    total = 0.0
    for steps, weight in zip(own.epochs, weights, strict=True):
        posted = [name for kind, _, name in steps if kind == "post"]
        total += weight * sum(sum(own.operations[name].bytes_to.values()) for name in posted)
    return int(total / sum(weights))
