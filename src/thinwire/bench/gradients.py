"""Workload `gradients`: steps of data-parallel training, each method with its own copy of the model.

none          plain DistributedDataParallel
bfloat16      with torch's own hook
powersgd      with torch's own hook, rank 2
layer-wise | one | equal:8 | cupcake | auto      our hook with this grouping, and the codec of the settings
local         the limit: the same step, but nothing is sent
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire import gradients
from thinwire.bench import columns, tasks
from thinwire.bench.case import Case
from thinwire.bench.tasks import Task
from thinwire.gradients.algorithms import AUTO, algorithm
from thinwire.gradients.planning import CUPCAKE, LAYER_WISE, ONE_GROUP, Plan
from thinwire.links import Door

LIMIT = "local"
NONE, BFLOAT16, POWERSGD, BEST = "none", "bfloat16", "powersgd", "auto"
FUSIONS = (LAYER_WISE, ONE_GROUP, CUPCAKE)
MORE = {"codec": str, "turn": int}
POWERSGD_RANK = 2
ONE_BUCKET_MIB = 4096
WARM_UP = 3
COLUMNS, CAPTION = columns.USUAL, columns.CAPTION


def check(methods: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    tasks.check(settings, MORE)
    algorithm(settings.get("codec", "topk:0.01"))
    for method in methods:
        if method not in (NONE, BFLOAT16, POWERSGD, BEST, LIMIT, *FUSIONS) and not method.startswith("equal:"):
            raise ValueError(
                f"method {method!r} is not known; give {NONE}, {BFLOAT16}, {POWERSGD}, {BEST}, {LIMIT}, "
                f"{', '.join(FUSIONS)} or equal:GROUPS"
            )


def set_up(case: Case, folder: Path) -> None:
    """Nothing to do: ranks make their own data."""


def prepare(door: Door, case: Case, folder: Path) -> dict[str, Any]:
    task = tasks.task_of(case.settings)
    codec = str(case.settings.get("codec", "topk:0.01"))
    size = tasks.batch_size(case.settings)
    profile = _profile(door, case)
    by_method = {method: Steps(method, task, profile, codec, size, door, case.seed) for method in case.methods}
    for steps in by_method.values():
        steps.take(WARM_UP)
    return by_method


def before_round(door: Door, prepared: dict[str, Any], case: Case) -> None:
    """Profile again, so that predictions and measurements come from the same minutes. Plans stay as they are."""
    profile = _profile(door, case)
    for steps in prepared.values():
        steps.predict(profile)


def _profile(door: Door, case: Case) -> gradients.Profile:
    task = tasks.task_of(case.settings)
    codec = str(case.settings.get("codec", "topk:0.01"))
    torch.manual_seed(case.seed)
    model = task.build()
    return gradients.profile(
        model,
        task.batch(tasks.batch_size(case.settings), door.rank, 0, case.seed),
        task.loss,
        door,
        codecs=dict.fromkeys([*AUTO, codec]),  # type: ignore[arg-type]
        optimizer=torch.optim.SGD(model.parameters(), lr=task.lr),
    )


def units(method: str, settings: Mapping[str, Any]) -> int:
    return int(settings.get("turn", 10))


def step(door: Door, method: str, prepared: dict[str, Any], case: Case, seed: int) -> dict[str, Any]:
    steps: Steps = prepared[method]
    before = sent_bytes()
    loss = steps.take(units(method, case.settings))
    facts: dict[str, Any] = {"loss": loss, "wire_bytes": (sent_bytes() - before) / units(method, case.settings)}
    return facts | steps.facts


def summary(case: Case, method: str, by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """`exposed_share` is the share of the step time beyond that of a step that sends nothing."""
    lines = by_method[method]
    figures: dict[str, Any] = {"wire_bytes": int(statistics.median(line["wire_bytes"] for line in lines))}
    figures |= {name: lines[-1][name] for name in ("loss", "groups", "codecs") if name in lines[-1]}
    if "predicted_s" in lines[-1]:
        figures["predicted_s"] = statistics.median(line["predicted_s"] for line in lines)
    if by_method.get(LIMIT):
        local = statistics.median(line["seconds"] for line in by_method[LIMIT])
        figures["exposed_share"] = max(0.0, 1 - local / statistics.median(line["seconds"] for line in lines))
    return figures


class Steps:
    """One method's training, run in turns of some steps."""

    def __init__(
        self, method: str, task: Task, profile: gradients.Profile, codec: str, size: int, door: Door, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self._task, self._size, self._door, self._seed = task, size, door, seed
        self._number = 0
        self.facts: dict[str, Any] = {}
        self._method = method
        self._plan: Plan | None = None
        self._still = method == LIMIT
        self.model = self._wrapped(method, task.build(), profile, codec)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=task.lr)
        self.predict(profile)

    def predict(self, profile: gradients.Profile) -> None:
        if self._plan is not None:
            self.facts["predicted_s"] = gradients.predict(profile, self._plan).step_s
        elif self._method in (NONE, BFLOAT16):
            self.facts["predicted_s"] = gradients.plan(profile, NONE).alternatives[self._method]

    def take(self, count: int) -> float:
        """Run `count` steps. Returns the last step's loss on this rank."""
        loss = torch.zeros(())
        for _ in range(count):
            batch = self._task.batch(self._size, self._door.rank, self._number, self._seed)
            self._optimizer.zero_grad()
            quiet: Any = self.model.no_sync() if self._still else nullcontext()
            with quiet:
                loss = self._task.loss(self.model, batch)
                loss.backward()
            self._optimizer.step()
            self._number += 1
        return float(loss.detach())

    def _wrapped(
        self, method: str, model: nn.Module, profile: gradients.Profile, codec: str
    ) -> DistributedDataParallel:
        if method in HOOKS:
            # PowerSGD's hook posts its second sum from the backend's thread. With several buckets, ranks may post these
            # in different orders, and gloo reports a mismatch. So use one bucket.
            options = {"bucket_cap_mb": ONE_BUCKET_MIB} if method == POWERSGD else {}
            wrapped = DistributedDataParallel(model, **options)  # type: ignore[arg-type]
            HOOKS[method](wrapped)
            return wrapped
        spec, fusion = ("auto", CUPCAKE) if method == BEST else (codec, method)
        self._plan = gradients.plan(profile, spec, fusion=fusion)
        self.facts |= _facts(self._plan)
        return gradients.wrap(model, self._plan, self._door)


def _facts(plan: Plan) -> dict[str, Any]:
    codecs: dict[str, int] = {}
    for group in plan.groups:
        name = f"{group.codec} {group.primitive}"
        codecs[name] = codecs.get(name, 0) + 1
    return {"groups": len(plan.groups), "codecs": codecs}


def _bfloat16(state: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's hook under another name: by its name DDP requires NCCL, although gloo can sum bfloat16 too."""
    return default_hooks.bf16_compress_hook(None, bucket)  # type: ignore[arg-type]


def _power_sgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, POWERSGD_RANK, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


HOOKS: dict[str, Callable[[DistributedDataParallel], None]] = {
    NONE: lambda model: None,
    LIMIT: lambda model: None,
    BFLOAT16: lambda model: model.register_comm_hook(None, _bfloat16),
    POWERSGD: _power_sgd,
}


def sent_bytes() -> int:
    """Bytes that this host's interfaces have sent so far, with frames. Emulated hosts have their own interfaces."""
    total = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() != "lo":
            total += int(counts.split()[8])
    return total
