"""Workload `fullgraph`: epochs of full-graph training on one set of shards. Methods as in `thinwire train`, and `free`.

A step is a number of epochs. It ends by waiting for the last transfers, so that those of a stale method count as its
own time and not as that of the next method.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from thinwire import graphs
from thinwire.bench import columns, methods
from thinwire.bench.case import Case
from thinwire.bench.free import FreeDoor
from thinwire.bench.turns import Turns
from thinwire.codecs import Identity
from thinwire.links import Door

MORE = {"turn": int, "float32_turn": int}
COLUMNS, CAPTION = columns.USUAL, columns.CAPTION


def check(names: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    methods.check(names, settings, MORE)
    for name in names:
        if methods.is_sampled(name):
            raise ValueError(f"{name!r} is minibatch training; give workload minibatch")


def set_up(case: Case, folder: Path) -> None:
    """Partition the data once, before ranks start. A folder of shards is used as it is."""
    data, ranks = str(case.settings.get("data", "synthetic")), case.hosts * case.ranks_per_host
    if not graphs.is_shard_folder(Path(data)):
        graphs.prepare(data, graphs.Settings(ranks, seed=case.seed), folder / "shards")
        return
    parts = graphs.read_manifest(Path(data)).num_parts
    if parts != ranks:
        raise ValueError(
            f"{data} has {parts} parts, the case {ranks} ranks; partition again (`thinwire partition --parts {ranks}`)"
        )
    (folder / "shards").symlink_to(Path(data).resolve(), target_is_directory=True)


def prepare(door: Door, case: Case, folder: Path) -> dict[str, Any]:
    shard, manifest = methods.loaded(door, folder)
    turns = {}
    for method in case.methods:
        job = methods.job_of(method, case.settings, case.seed)
        method_door = FreeDoor(door) if method.startswith(methods.FREE) else door
        turns[method] = Turns(methods.run_of(job, shard, method_door, manifest))
    return turns


def units(method: str, settings: Mapping[str, Any]) -> int:
    """Epochs in a step. `float32_turn` sets fewer for float32 messages, which take long on a slow link."""
    is_float32 = _is_float32(method, settings)
    return int(settings.get("float32_turn" if is_float32 else "turn", settings.get("turn", 10)))


def _is_float32(method: str, settings: Mapping[str, Any]) -> bool:
    """Whether the method sends messages as large as float32."""
    rows = (1_000, 8)
    job = methods.job_of(method, settings, 0)
    return method.split()[0] != methods.FREE and job.method.message_bytes(*rows) >= Identity().nbytes(rows)


def step(door: Door, method: str, prepared: dict[str, Any], case: Case, seed: int) -> dict[str, Any]:
    turns, epochs = prepared[method], units(method, case.settings)
    records = turns.run.distributed.records
    before = len(records)
    turns.take(epochs)
    if not records:
        return {}
    facts: dict[str, Any] = {
        "assign_s": sum(record["assign_s"] + record["trace_s"] for record in records[before:]) / epochs
    }
    if before:
        in_force = records[before - 1]
        facts |= {"predicted_s": in_force["predicted_epoch_s"], "bytes_by_rank": _by_rank(in_force)}
    return facts


def _by_rank(record: Mapping[str, Any]) -> list[int]:
    """Bytes of messages that each rank sends and receives in an epoch."""
    total = torch.tensor([message["bytes_from_to"] for message in record["messages"]]).sum(dim=0)
    return [int(size) for size in total.sum(dim=0) + total.sum(dim=1)]


def summary(case: Case, method: str, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """For methods that assign bits: the predicted epoch time, and the share of time spent on tracing and assigning."""
    predicted = [line for line in lines[method] if line.get("predicted_s") is not None]
    if not predicted:
        return {}
    return {
        "predicted_s": statistics.median(line["predicted_s"] for line in predicted),
        "bytes_by_rank": predicted[-1]["bytes_by_rank"],
        "assign_share": sum(line["assign_s"] for line in predicted) / sum(line["seconds"] for line in predicted),
    }
