"""Wraps a model as DistributedDataParallel with exactly the plan's groups, over all ranks or a process group."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from thinwire.gradients import hook
from thinwire.gradients.costs import READY
from thinwire.gradients.hook import Hook, LossScaler
from thinwire.gradients.planning import Plan
from thinwire.gradients.progress import WINDOW
from thinwire.links import Door
from thinwire.links.agreement import Fact, expect_same

MIB = 1024**2
# The attribute of a wrapped model that holds its hook.
NAME = "thinwire"


def wrap(
    model: nn.Module,
    plan: Plan,
    door: Door | None = None,
    *,
    scaler: LossScaler | None = None,
    state: Mapping[str, Tensor] | None = None,
    progress_every: int = WINDOW,
    **options: Any,
) -> DistributedDataParallel:
    """The model on all ranks, its gradients averaged by the plan at the end of every backward pass.

    `scaler` is the GradScaler in use, if any. `state` is what `hook_of(model).state_dict()` gave.
    The progress of lossy codecs is measured on a sample, over windows of `progress_every` steps; 0 means never. Other
    options are DistributedDataParallel's. With `process_group` or `device_mesh`, `door` must reach the same ranks, and
    profile and plan must be made for them. The first pass is sent uncompressed: it shows DDP the order of gradients.
    """
    for name in ("bucket_cap_mb", "bucket_cap_mb_list", "static_graph"):
        if name in options:
            raise ValueError(f"wrap: {name} is the plan's to say; leave it out")
    any_unused = plan.order != READY
    if options.pop("find_unused_parameters", any_unused) != any_unused:
        raise ValueError(
            f"wrap: the plan was made for find_unused_parameters={any_unused}; profile with "
            f"find_unused_parameters={not any_unused}, and plan again"
        )
    if progress_every < 0 or (not progress_every and plan.rivals):
        raise ValueError(
            f"wrap: progress_every is {progress_every}; give a number of steps, or 0 for never with a plan whose codec "
            "was named: what auto has chosen is watched"
        )
    group = _group_of(options)
    ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    if door is not None and door.ranks != ranks:
        raise ValueError(
            f"wrap: the door reaches ranks {_listed(door.ranks)}, gradients are averaged over ranks {_listed(ranks)}; "
            "give Door(group=...) and process_group the same group, and profile through that door"
        )
    plan.check(
        {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}, len(ranks)
    )
    if len({parameter.dtype for parameter in model.parameters() if parameter.requires_grad}) > 1:
        raise ValueError("wrap: parameters of several dtypes never share a bucket; give the model one, model.float()")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError("wrap: a parameter is a DTensor; FSDP2 and its like send their gradients themselves")
    door = door or Door(group=group)
    _expect_same_plan(door, plan)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state_of_hook = Hook(plan, door, names, scaler=scaler, state=state, progress_every=progress_every)
    # Avoids copies from the buckets to gradients. Copies into them remain where gradients are set to None, since
    # autograd makes new ones elsewhere.
    options.setdefault("gradient_as_bucket_view", True)
    limits: Any = caps(plan, model)  # fractions of a MiB, which DDP accepts though its type says int
    wrapped = DistributedDataParallel(model, bucket_cap_mb_list=limits, find_unused_parameters=any_unused, **options)
    wrapped.register_comm_hook(state_of_hook, hook.run)
    wrapped.register_forward_hook(lambda *_: state_of_hook.begin())
    wrapped.__dict__[NAME] = state_of_hook
    wrapped.__dict__["join_hook"] = _join_hook(wrapped, plan)
    return wrapped


def hook_of(model: nn.Module) -> Hook:
    """The hook of a wrapped model: its memory, its count of skipped steps, its last timeline."""
    hook = model.__dict__.get(NAME)
    if not isinstance(hook, Hook):
        raise ValueError("hook_of: this model was not made by gradients.wrap")
    return hook


def _group_of(options: Mapping[str, Any]) -> dist.ProcessGroup | None:
    """The process group that averages, by DDP's own options; None for the default one."""
    group, mesh = options.get("process_group"), options.get("device_mesh")
    if group is not None and mesh is not None:
        raise ValueError("wrap: process_group and device_mesh say the same thing; give one of them")
    if mesh is not None:
        if mesh.ndim != 1:
            raise ValueError(
                f"wrap: device_mesh has dimensions {mesh.mesh_dim_names or mesh.ndim}; give the one that replicas lie "
                'along, as mesh["replicate"]'
            )
        group = mesh.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"wrap: rank {dist.get_rank()} is not in its process_group; give each rank the one it is in")
    return group


def _join_hook(wrapped: DistributedDataParallel, plan: Plan) -> Callable[..., Any]:
    """The hook of `with model.join():`. Raises where a rank that has joined could not do what the other ranks do."""

    def join_hook(**options: Any) -> Any:
        if plan.order != READY:
            raise ValueError(
                "join: not with parameters that may get no gradient: a rank that has joined does not hear which were "
                "used. Give all ranks as many batches, or use every parameter in every step and profile it so"
            )
        if not options.get("divide_by_initial_world_size", True):
            raise ValueError(
                "join: gradients are averaged over all ranks here, those that have joined too; leave out "
                "divide_by_initial_world_size=False"
            )
        return DistributedDataParallel.join_hook(wrapped, **options)

    return join_hook


def _expect_same_plan(door: Door, plan: Plan) -> None:
    """Raise if ranks have different plans: messages would not fit, or one rank would fall back alone."""
    content = {
        name: value for name, value in asdict(plan).items() if name not in ("predicted", "alternatives", "rivals")
    }
    if plan.rivals and plan.predicted is not None:  # different processors may differ in the last digits
        content["judged by"] = [f"{step_s:.6g}" for step_s in (plan.predicted.step_s, *plan.rivals.values())]
    remedy = "make it from a profile that all ranks took together, or give all the same file"
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    expect_same(door, {"plan": Fact(digest, remedy)})


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def caps(plan: Plan, model: nn.Module) -> list[float]:
    """DDP's bucket limits in MiB that yield the plan's groups: DDP closes a bucket once its bytes reach the limit."""
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    filled = [sum(sizes[name] for name in group.names) for group in plan.groups]
    limits = [(size + 0.5) / MIB for size in filled if size]
    # Where DDP does not learn the order, it cuts buckets in the order of definition and reverses them.
    return limits if plan.order == READY else limits[::-1]
