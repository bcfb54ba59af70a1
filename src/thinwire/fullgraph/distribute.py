"""A user's own PyG model, on a shard: its layers in their distributed form, its weights shared by all ranks."""

import torch
from torch import nn
from torch_geometric.nn import MessagePassing

from thinwire.fullgraph.gradients import GradientSum
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.layers import LAYERS, Distributed, Unsupported
from thinwire.fullgraph.plan import Plan
from thinwire.graphs import Shard
from thinwire.links import Door


def distribute(model: nn.Module, shard: Shard, door: Door, plan: Plan | None = None) -> nn.Module:
    """The same model, changed in place: rows in are this shard's nodes, rows out too, gradients are the whole graph's.

    Weights are rank 0's. The loss is yours: the sum over this shard's training nodes, over `shard.num_train`. An epoch
    is a forward pass in training mode; in evaluation mode messages are exact whatever the plan.
    """
    if shard.num_parts != door.world_size:
        raise ValueError(
            f"the shard is one of {shard.num_parts}, this run has {door.world_size} ranks; partition again"
        )
    names = [name for name, module in model.named_modules() if isinstance(module, MessagePassing)]
    if not names:
        raise Unsupported(f"{type(model).__name__} has no PyG message passing layer: nothing to distribute")
    halos = [_replace(model, name, number, shard, door) for number, name in enumerate(names)]
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.numel():
                door.broadcast(tensor.data, 0, channel="weights").wait()
    GradientSum(model.parameters(), door)  # lives in the weights' hooks
    model.register_forward_pre_hook(_Epochs(halos, plan or Plan(), door))
    return model


class _Epochs:
    """Before each forward pass in training: which epoch it is, hence whether stale, and by which seeds."""

    def __init__(self, halos: list[Halo], plan: Plan, door: Door) -> None:
        self.halos = halos
        self.plan = plan
        self.door = door
        self.epoch = 0

    def __call__(self, model: nn.Module, _: object) -> None:
        if not model.training:
            return
        codec = self.plan.codec()
        for halo in self.halos:
            halo.codec, halo.stale = codec, self.plan.is_stale(self.epoch)
            halo.seed = (self.plan.seed, self.epoch)
        self.door.step = self.epoch
        self.epoch += 1


def _replace(model: nn.Module, name: str, number: int, shard: Shard, door: Door) -> Halo:
    conv = model.get_submodule(name)
    make = LAYERS.get(type(conv))
    if make is None:
        known = ", ".join(layer.__name__ for layer in LAYERS)
        raise Unsupported(f"{name}: {type(conv).__name__} is not distributed; known are {known}")
    halo = Halo(shard, door, name=name or type(conv).__name__, number=number)
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, Distributed(conv, halo, make(conv, shard, halo)))
    return halo
