"""Workload `fsdp`: whole runs of FSDP2, one per seed: seconds per step, bytes of gradients and weights, final losses.

fsdp2                              plain FSDP2: parameters are resharded after forward and gathered again in backward
fsdp2 --keep                       parameters are kept after forward, which takes as much memory as ours
none --keep                        also sums float32 gradients by our reduce-scatter: gloo's is an all-reduce
uniform:8 --parameters uniform:4   our codecs for gradients and for parameters
local                              the limit: the same step, but nothing is sent
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from thinwire.bench import columns, tasks
from thinwire.bench.case import Case
from thinwire.bench.gradients import sent_bytes
from thinwire.bench.tasks import Task
from thinwire.gradients import fsdp
from thinwire.gradients.fsdp.choice import for_gradients, for_parameters
from thinwire.links import Door

PLAIN, LIMIT = "fsdp2", "local"
KEEP, PARAMETERS = "--keep", "--parameters"
MORE = {"steps": int, "lr": float}
STEPS = 200
# Steps of the limit, where only seconds count.
LIMIT_STEPS = 30
# The final loss is the mean over these batches, the same for all methods.
FINAL_BATCHES, FINAL_SIZE, FINAL_SEED = 8, 16, 999
COLUMNS = (
    columns.SECONDS,
    columns.RATIO,
    columns.WAITING,
    columns.figure("loss", "loss", ".3f"),
    columns.figure("beside", "loss_beside", "+.1%"),
    columns.Column("gradients", lambda row: f"{columns.figure_text(row, 'gradients_thinner', '.1f')}x"),
    columns.Column("weights", lambda row: f"{columns.figure_text(row, 'parameters_thinner', '.1f')}x"),
)
CAPTION = (
    "{} seeds; seconds a step, and what of it is beyond one that sends nothing; the mean of final losses, and "
    "beside the first method's; how many times fewer bytes of gradients and of weights than its collectives need"
)


@dataclass(frozen=True)
class Method:
    """What the words of a method ask for: a codec of gradients, one of parameters, weights kept between passes."""

    codec: str
    parameters: str | None
    keep: bool

    @staticmethod
    def parse(words: str) -> "Method":
        codec, *rest = words.split()
        keep = KEEP in rest
        rest = [word for word in rest if word != KEEP]
        if rest and (rest[0] != PARAMETERS or len(rest) != 2):
            raise ValueError(f"method {words!r}; give a codec, {PLAIN} or {LIMIT}, {PARAMETERS} CODEC, {KEEP}")
        return Method(codec, rest[1] if rest else None, keep)


def check(methods: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    tasks.check(settings, MORE)
    if settings.get("task") != "llama":
        raise ValueError('settings: task is what can be sharded block by block; give task = "llama"')
    for method in map(Method.parse, methods):
        if method.codec not in (PLAIN, LIMIT):
            for_gradients(method.codec, feedback=True)
        if method.parameters is not None:
            for_parameters(method.parameters)


def set_up(case: Case, folder: Path) -> None:
    """Nothing to do: ranks make their own data."""


def prepare(door: Door, case: Case, folder: Path) -> Task:
    return tasks.task_of(case.settings)


def units(method: str, settings: Mapping[str, Any]) -> int:
    return LIMIT_STEPS if method == LIMIT else int(settings.get("steps", STEPS))


def step(door: Door, method: str, prepared: Task, case: Case, seed: int) -> dict[str, Any]:
    parsed, task, count = Method.parse(method), prepared, units(method, case.settings)
    torch.manual_seed(seed)
    model, counted = _sharded(task.build(), parsed, door, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1 - number / count)
    losses, seconds = [], []
    before = sent_bytes()
    for number in range(count):
        batch = task.batch(tasks.batch_size(case.settings), door.rank, number, seed)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        decay.step()
        losses.append(float(loss.detach()))
    wire_bytes = (sent_bytes() - before) / count
    # Taken before evaluation, which also sends.
    bytes_of = {name: counter.bytes * door.world_size / count for name, counter in counted.items()}
    gathered = door.gather(torch.tensor([losses[0], statistics.median(seconds), wire_bytes]), channel="harness")
    facts = {
        "first_loss": float(gathered[:, 0].mean()),
        "seconds": float(gathered[:, 1].max()),
        "wire_bytes": float(gathered[:, 2].sum()),
        "loss": _final(model, task, door),
    }
    return facts | bytes_of


def summary(case: Case, method: str, by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """`*_thinner`: the bytes that the first method's collectives need as rings, over the bytes of this method."""
    method_lines, first = by_method[method], by_method[case.methods[0]]
    seconds = statistics.median(line["seconds"] for line in method_lines)
    figures: dict[str, Any] = {"wire_bytes": statistics.median(line["wire_bytes"] for line in method_lines)}
    if by_method.get(LIMIT):
        figures["exposed_share"] = max(
            0.0, 1 - statistics.median(line["seconds"] for line in by_method[LIMIT]) / seconds
        )
    if method == LIMIT:
        return figures
    mean, of_first = (statistics.fmean(line["loss"] for line in lines) for lines in (method_lines, first))
    figures |= {
        "first_loss": statistics.fmean(line["first_loss"] for line in method_lines),
        "loss": mean,
        "loss_low": min(line["loss"] for line in method_lines),
        "loss_high": max(line["loss"] for line in method_lines),
        "loss_beside": mean / of_first - 1,
        # Compared seed by seed: runs with the same seed start equal and see the same batches.
        "loss_beside_each": [a["loss"] / b["loss"] - 1 for a, b in zip(method_lines, first, strict=False)],
    }
    for what in ("gradients", "parameters"):
        bytes_of = _bytes_of(method_lines[-1], what)
        figures[f"{what}_bytes"] = bytes_of
        figures[f"{what}_thinner"] = _bytes_of(first[-1], what) / bytes_of
    return figures


def _bytes_of(line: Mapping[str, Any], what: str) -> float:
    """Bytes per step over all ranks, sent by torch's collectives or through the door."""
    channels = line.get("channels", {})
    return float(line.get(what, 0) + sum(size for name, size in channels.items() if name.startswith(f"{what}.fsdp.")))


def _final(model: nn.Module, task: Task, door: Door) -> float:
    model.eval()
    with torch.no_grad():
        batches = [task.batch(FINAL_SIZE, door.rank, number, FINAL_SEED) for number in range(FINAL_BATCHES)]
        own_loss = torch.stack([task.loss(model, batch) for batch in batches]).mean()
    return float(door.gather(own_loss, channel="harness").mean())


def _sharded(model: Any, method: Method, door: Door, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """The sharded model, and the collectives that count torch's bytes, by 'gradients' and 'parameters'."""
    mesh = init_device_mesh("cpu", (door.world_size,))
    keep: dict[str, Any] = {"reshard_after_forward": False} if method.keep else {}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **keep)
    fully_shard(model, mesh=mesh, **keep)
    counted: dict[str, Any] = {}
    if method.codec not in (PLAIN, LIMIT):
        fsdp.compress(model, method.codec, door, parameters=method.parameters, seed=seed)
    else:
        counted["gradients"] = Kept() if method.codec == LIMIT else Scattered()
    if method.parameters is None:
        counted["parameters"] = Copied() if method.codec == LIMIT else Gathered()
    for part in model.modules():
        if isinstance(part, FSDPModule):
            if "gradients" in counted:
                part.set_custom_reduce_scatter(counted["gradients"])
            if "parameters" in counted:
                part.set_custom_all_gather(counted["parameters"])
    return model, counted


class Gathered(DefaultAllGather):
    """torch's all-gather, with its bytes counted. It is a ring, so a rank sends all but one shard."""

    bytes = 0

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *rest: Any, **more: Any) -> dist.Work | None:
        self.bytes += output_tensor.nbytes - input_tensor.nbytes
        return super().__call__(output_tensor, input_tensor, *rest, **more)


class Scattered(DefaultReduceScatter):
    """torch's reduce-scatter. Counts the bytes that a ring needs, half of what gloo sends."""

    bytes = 0

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *rest: Any, **more: Any) -> dist.Work:
        self.bytes += input_tensor.nbytes - output_tensor.nbytes
        return super().__call__(output_tensor, input_tensor, *rest, **more)


class Copied(DefaultAllGather):
    """An all-gather that sends nothing: copies this rank's shard into every place."""

    bytes = 0

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *rest: Any, **more: Any) -> dist.Work | None:
        output_tensor.view(-1, input_tensor.numel()).copy_(input_tensor.clone())
        return None


class Kept(DefaultReduceScatter):
    """A reduce-scatter that sends nothing: returns a part of this rank's own gradient."""

    bytes = 0

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *rest: Any, **more: Any) -> Any:
        output_tensor.copy_(input_tensor[: output_tensor.numel()])
        return None
