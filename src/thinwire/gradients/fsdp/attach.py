"""`compress`: makes a model that went through `fully_shard` send its gradients and parameters by codecs."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from thinwire.gradients.fsdp.choice import for_gradients, for_parameters
from thinwire.gradients.fsdp.compression import Compression
from thinwire.gradients.fsdp.gather import DifferencesGathered
from thinwire.gradients.fsdp.passes import Passes
from thinwire.gradients.fsdp.replicas import CompressedReplicas
from thinwire.gradients.fsdp.scatter import CompressedReduceScatter
from thinwire.gradients.fsdp.units import Unit, units_of
from thinwire.gradients.hook import LossScaler
from thinwire.gradients.wrapping import NAME
from thinwire.links import Door
from thinwire.links.agreement import Fact, expect_same
from thinwire.links.exchange import LIMIT_S

REPLICATE, SHARD = "replicate", "shard"
SAME_CODECS = "call compress with the same on all ranks"


def compress(
    model: nn.Module,
    codec: str,
    door: Door | None = None,
    *,
    parameters: str | None = None,
    slow: str | None = None,
    scaler: LossScaler | None = None,
    feedback: bool = True,
    seed: int = 0,
) -> nn.Module:
    """Let all units of a model that went through `fully_shard` send their gradients by this codec. Returns the model.

    `parameters` is the codec of the all-gather, "uniform:8" or "uniform:4". Without it parameters are sent as they are.
    `slow` is the dimension of the mesh that crosses the slow link. Only its messages are compressed. The default is
    "replicate" where there are replicas (HSDP), else "shard". `scaler` is the GradScaler in use, if any.
    """
    codec_of_gradients, remembers = for_gradients(codec, feedback=feedback)
    codec_of_parameters = None if parameters is None else for_parameters(parameters)
    units = units_of(model)
    if not units:
        raise ValueError("compress: no module of this model is sharded; call torch's fully_shard on it first")
    if NAME in model.__dict__:
        raise ValueError("compress: this model is compressed already; call it once, on a model fresh from fully_shard")
    replicas = _are_replicas_slow(units, slow)
    if replicas and parameters is not None:
        raise ValueError(
            f"compress: parameters are gathered along {SHARD!r}, and {REPLICATE!r} is the slow dimension; give "
            f"parameters=None, or slow={SHARD!r} where shards are on several hosts"
        )
    doors = _Doors(door)
    slow_group = _slow_group(units[0], replicas)
    # Messages of other sizes than a rank expects would abort its process.
    options = {"codec": codec, "parameters": parameters or "none", "feedback": feedback, "seed": seed}
    expect_same(doors.over(slow_group), {name: Fact(value, SAME_CODECS) for name, value in options.items()})
    beside = {tuple(dist.get_process_group_ranks(group)): group for unit in units for group in unit.beside(slow_group)}
    if any(unit.reduce_dtype == torch.float16 for unit in units):  # one rank's sum alone may be beyond what it holds
        beside |= {
            tuple(dist.get_process_group_ranks(group)): group
            for group in (_slow_group(unit, replicas) for unit in units)
        }
    passes = Passes(list(beside.values()), units[0].device, doors.count_step)

    def scale() -> float:
        return scaler.get_scale() if scaler is not None else 1.0

    reducers: list[Any] = []
    gathers = []
    for unit in units:
        door = doors.over(_slow_group(unit, replicas))
        if replicas:
            reducer: Any = CompressedReplicas(unit, codec, door, passes, feedback=feedback, scale=scale, seed=seed)
            unit.use_all_reduce(reducer)
        else:
            reducer = CompressedReduceScatter(
                unit, codec_of_gradients, door, passes, remembers=remembers, scale=scale, seed=seed
            )
            unit.use_reduce_scatter(reducer)
        reducers.append(reducer)
        if codec_of_parameters is not None:
            gather = DifferencesGathered(unit, codec_of_parameters, door, seed=seed)
            unit.use_all_gather(gather)
            gathers.append(gather)
    compression = Compression(units, reducers, gathers, passes, doors.opened)
    model.__dict__[NAME] = compression
    # A checkpoint that is loaded during training replaces the weights. The differences that are sent next can't start
    # from what the other ranks hold of the old ones.
    model.register_load_state_dict_post_hook(lambda *_: compression.reset_parameters())
    return model


class _Doors:
    """A door for each group of ranks: the user's door if it reaches exactly these ranks, else a new one."""

    def __init__(self, door: Door | None) -> None:
        self._users = door
        self._by_ranks: dict[tuple[int, ...], Door] = {} if door is None else {door.ranks: door}
        self.opened: list[Door] = []

    def over(self, group: dist.ProcessGroup) -> Door:
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._by_ranks:
            limit_s = LIMIT_S if self._users is None else self._users.heartbeat.limit_s
            self._by_ranks[ranks] = Door(group=group, limit_s=limit_s)
            self.opened.append(self._by_ranks[ranks])
        return self._by_ranks[ranks]

    def count_step(self) -> None:
        for door in self._by_ranks.values():
            door.step += 1


def _are_replicas_slow(units: Sequence[Unit], slow: str | None) -> bool:
    if slow not in (None, REPLICATE, SHARD):
        raise ValueError(f"compress: slow is {slow!r}; give {REPLICATE!r}, {SHARD!r} or None")
    has = {unit.replicate_group is not None for unit in units}
    if len(has) > 1:
        raise ValueError("compress: some units have replicas and some have not; give fully_shard one mesh for all")
    if slow == REPLICATE and not has.pop():
        raise ValueError(f"compress: slow is {REPLICATE!r}, but this model has no replicas; give {SHARD!r} or None")
    return slow == REPLICATE or (slow is None and True in has)


def _slow_group(unit: Unit, replicas: bool) -> dist.ProcessGroup:
    group = unit.replicate_group if replicas else unit.shard_group
    assert group is not None
    return group
