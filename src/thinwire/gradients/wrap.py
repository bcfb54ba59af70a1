"""A user's model as a DistributedDataParallel with exactly the plan's groups."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.gradients import hook
from thinwire.gradients.costs import READY
from thinwire.gradients.hook import Hook, LossScaler
from thinwire.gradients.plan import Plan
from thinwire.links import Door

MIB = 1024**2
# Under which a wrapped model has its hook.
NAME = "thinwire"


def wrap(
    model: nn.Module,
    plan: Plan,
    links: Door | None = None,
    *,
    scaler: LossScaler | None = None,
    state: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> DistributedDataParallel:
    """The model on all ranks, its gradients averaged by the plan at the end of every backward pass.

    `scaler` is the GradScaler in use, if any. `state` is what `hook_of(model).state_dict()` gave. Other options are
    DistributedDataParallel's. Its first pass is sent uncompressed: DDP learns the order of gradients in it.
    """
    for name in ("bucket_cap_mb", "bucket_cap_mb_list", "find_unused_parameters", "static_graph"):
        if name in options:
            raise ValueError(f"wrap: {name} is the plan's to say; profile a model with unused parameters as it is")
    world_size = dist.get_world_size()
    plan.check({name: each.numel() for name, each in model.named_parameters() if each.requires_grad}, world_size)
    if len({each.dtype for each in model.parameters() if each.requires_grad}) > 1:
        raise ValueError("wrap: parameters of several dtypes never share a bucket; give the model one, model.float()")
    door = links if links is not None else Door(dist.distributed_c10d._get_default_store())
    names = {id(each): name for name, each in model.named_parameters()}
    state_of_hook = Hook(plan, door, names, scaler=scaler, state=state)
    # Without the copies back from buckets. (Those into them stay: a gradient that was set to None is made elsewhere.)
    options.setdefault("gradient_as_bucket_view", True)
    limits: Any = caps(plan, model)  # fractions of a MiB, which DDP takes though it says int
    wrapped = DistributedDataParallel(
        model, bucket_cap_mb_list=limits, find_unused_parameters=plan.order != READY, **options
    )
    wrapped.register_comm_hook(state_of_hook, hook.run)
    wrapped.register_forward_hook(lambda *_: state_of_hook.begin())
    wrapped.__dict__[NAME] = state_of_hook
    return wrapped


def hook_of(model: nn.Module) -> Hook:
    """The hook of a wrapped model: its memory, its count of skipped steps, its last timeline."""
    found = model.__dict__.get(NAME)
    if not isinstance(found, Hook):
        raise ValueError("hook_of: this model was not made by gradients.wrap")
    return found


def caps(plan: Plan, model: nn.Module) -> list[float]:
    """DDP's limits, in MiB, that cut just so: it closes a bucket once its bytes reach the limit."""
    sizes = {name: each.nbytes for name, each in model.named_parameters()}
    filled = [sum(sizes[name] for name in group.names) for group in plan.groups]
    limits = [(size + 0.5) / MIB for size in filled if size]
    # Where DDP does not learn the order, it cuts in the order of definition and turns that around.
    return limits if plan.order == READY else limits[::-1]
