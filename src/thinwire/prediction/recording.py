"""Records a few epochs of every method, with each step and transfer noted. All ranks run this."""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thinwire.bench import methods
from thinwire.gradients.algorithms import NONE
from thinwire.gradients.measure import value_seconds
from thinwire.gradients.sent import AUTO
from thinwire.gradients.sharing import CODECS, Measured
from thinwire.links import Door
from thinwire.links.cost import CostModel
from thinwire.links.event_log import EventLog, Moment
from thinwire.links.exchange import LIMIT_S
from thinwire.links.quick_probe import quick_probe
from thinwire.links.script import Script, script, steadied
from thinwire.prediction.memory import peak_bytes, reset_peak
from thinwire.training.own_shard import own_shard
from thinwire.training.run import Run

CHANNEL = "recording"
MANY = 1 << 20  # epochs of the job: more than are ever recorded


@dataclass(frozen=True)
class Recording:
    """A method's recording: the script of every rank, and the weight of each recorded epoch in the mean."""

    method: str
    scripts: list[Script]
    weights: list[float]
    bytes_per_epoch: int
    memory_bytes: int  # of the rank that needs most
    more_s: float = 0.0  # mean seconds an epoch that are not in the scripts: choosing bits
    gradients: str = NONE  # the codec of the weights' gradients in the scripts
    measured: Measured | None = None  # where `auto` is to choose another codec by the wires


def record(
    names: Sequence[str],
    settings: dict[str, Any],
    seed: int,
    shards: str,
    profile: str,
    limit_s: float = LIMIT_S,
) -> tuple[list[Recording], CostModel]:
    """Recordings of these methods, the same on every rank, and a cost model of the wires between these ranks.

    `profile` is a file that describes the wires to predict for.
    """
    jobs = {
        name: replace(methods.job_of(name, settings, seed), shards=shards, profile=profile, epochs=MANY)
        for name in names
    }
    first = next(iter(jobs.values()))
    with Door(limit_s=limit_s) as door, own_shard(first, door) as (shard, manifest):
        recordings = []
        for name, job in jobs.items():
            reset_peak()
            # `auto` is recorded in float32: which codec it chooses depends on the wires to predict for.
            plain = NONE if job.gradients_codec == AUTO else job.gradients_codec
            run = methods.run_of(replace(job, gradients=plain), shard, door, manifest)
            recorded = _recorded(name, run, door)
            if job.gradients_codec == AUTO and door.world_size > 1:
                recorded = replace(recorded, measured=_measured(run, door, shard.x.device))
            recordings.append(recorded)
            del run
            gc.collect()  # models and their hooks form cycles; they must not count in the next method's memory
        return recordings, quick_probe(door, shard.x.device)


def _recorded(name: str, run: Run, door: Door) -> Recording:
    window = run.window()
    run.begin_at(window.first)
    run.horizon = window.noted.stop
    for epoch in range(window.first, window.noted.start):
        run.step(epoch)
    door.barrier(channel=CHANNEL)  # all ranks begin together
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
    rank_script = steadied(
        script(event_log, ends, by_wall=torch.get_num_threads() > 1, beside_s=beside_s / max(1, sent))
    )
    gathered = door.gather_json(
        [rank_script.to_json(), _bytes(rank_script, window.weights), peak_bytes(), run.choosing_s()], channel=CHANNEL
    )
    return Recording(
        name,
        [Script.from_json(row[0]) for row in gathered],
        window.weights,
        sum(row[1] for row in gathered),
        max(row[2] for row in gathered),
        max(row[3] for row in gathered),
        run.gradients.codec,
    )


def _measured(run: Run, door: Door, device: torch.device) -> Measured:
    """What a choice of the gradients' codec needs of this run."""
    groups = run.gradients.layout
    sizes = [size for group in groups for size in group if size]
    return Measured(groups, value_seconds(CODECS, sizes, door, device))


def _bytes(rank_script: Script, weights: Sequence[float]) -> int:
    """Mean bytes that this rank sends in an epoch."""
    total = 0.0
    for steps, weight in zip(rank_script.epochs, weights, strict=True):
        posted = [name for kind, _, name in steps if kind == "post"]
        total += weight * sum(sum(rank_script.operations[name].bytes_to.values()) for name in posted)
    return int(total / sum(weights))
