"""Whole state dicts from trainer to server: all tensors balanced together, under a memory cap, in few bytes if wanted.

A codec may be named for each tensor: bfloat16, uniform:8, or `difference:uniform:8`, which sends what has changed since
the last time. The sender remembers what receivers have, rounding errors included, so that errors don't add up: the
next difference carries them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import AUTO, PIECE_BYTES, Plan, TensorSpec, codec_of, plan_all
from thinwire.crossmesh.profiling import default_door, default_network
from thinwire.crossmesh.run import WORKERS, start_all
from thinwire.crossmesh.tensors import as_dtensor, layout_of
from thinwire.links import Door

DIFFERENCE = "difference:"
LEAST_MEMORY_BYTES = 1 << 20
# A piece in hand: as it lies in the tensor, in float32, encoded, and decoded again.
COPIES = 4

Placements = Sequence[Placement] | Mapping[str, Sequence[Placement]] | Callable[[str], Sequence[Placement]]
Codecs = str | Mapping[str, str] | Callable[[str], str]


class Options(TypedDict, total=False):
    """What `StateSync` and `reshard_state_dict` take."""

    codec: Codecs
    memory_bytes: int | None
    cost: Network | None
    strategy: str
    door: Door | None


def reshard_state_dict(
    state: Mapping[str, DTensor], dst_mesh: DeviceMesh, dst_placements: Placements, **options: Unpack[Options]
) -> dict[str, DTensor]:
    """Every tensor on the other mesh. For tensors that are sent again and again see `StateSync`.

    Placements and codecs are one for all, or by name. `memory_bytes` bounds what a rank uses beside the tensors.
    """
    return StateSync(dst_mesh, dst_placements, **options).send(state)


class StateSync:
    """A state dict that goes the same way again and again: planned once, with a memory for differences."""

    def __init__(
        self,
        dst_mesh: DeviceMesh,
        dst_placements: Placements,
        *,
        codec: Codecs = "",
        memory_bytes: int | None = None,
        cost: Network | None = None,
        strategy: str = AUTO,
        door: Door | None = None,
    ) -> None:
        if memory_bytes is not None and memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"memory_bytes is {memory_bytes}; give {LEAST_MEMORY_BYTES} (1 MiB) or more")
        self._mesh, self._placements, self._codec = dst_mesh, dst_placements, codec
        self._cost, self._strategy, self._door = cost, strategy, door or default_door()
        self._piece_bytes = min(PIECE_BYTES, memory_bytes // (WORKERS * COPIES)) if memory_bytes else PIECE_BYTES
        self._known: dict[int, Tensor] = {}  # of source tiles, what receivers have of them
        self._held: dict[int, Tensor] = {}  # of destination tiles, what is there
        self._calls = 0
        self._names: list[str] | None = None
        self.plan: Plan | None = None

    def send(self, state: Mapping[str, DTensor]) -> dict[str, DTensor]:
        """Every rank of both meshes calls this, with the same names in the same order."""
        names = list(state)
        if self._names is not None and names != self._names:
            odd = sorted(set(names) ^ set(self._names)) or ["their order"]
            raise ValueError(f"the state dict has changed ({odd[0]}); make another StateSync for it")
        self._names = names
        plan = self.plan = self._planned(state)
        rank = self._door.rank
        sources = {
            index: state[name]._local_tensor
            for index, name in enumerate(names)
            if rank in plan.tensors[index].source.ranks
        }
        moving = start_all(
            plan,
            sources,
            self._door,
            dtypes=[state[name].dtype for name in names],
            seed=self._calls,
            known=self._known,
            held=self._held,
        )
        outs = moving.wait()
        if not self._calls:
            differing = [index for index, name in enumerate(names) if self._codec_of(name).startswith(DIFFERENCE)]
            # All ranks that have a tile remember it, whoever has sent it: the next plan may choose another of them.
            self._known = {index: sources[index].float().clone() for index in differing if index in sources}
            self._held = {index: outs[index].float().clone() for index in differing if index in outs}
        self._calls += 1
        made = {}
        for index, name in enumerate(names):
            spec = plan.tensors[index]
            local = outs.get(index, torch.empty(0, dtype=state[name].dtype))
            made[name] = as_dtensor(local, self._mesh, self._placed(name), spec.destination.shape)
        return made

    def _planned(self, state: Mapping[str, DTensor]) -> Plan:
        """The first time there is nothing to differ from: all bytes go."""
        specs = []
        for name, x in state.items():
            if not isinstance(x, DTensor):
                raise ValueError(
                    f"{name} is a {type(x).__name__}, not a DTensor; distribute_tensor it, or leave it out"
                )
            shape = tuple(x.shape)
            source = layout_of(x.device_mesh, x.placements, shape)
            destination = layout_of(self._mesh, self._placed(name), shape)
            word = self._codec_of(name)
            codec = word.removeprefix(DIFFERENCE)
            if word:
                codec_of(codec)
                if source.partial_axes:
                    raise ValueError(f"{name} is partial: its sums are made on the way, uncoded; give '' for it")
                if not x.dtype.is_floating_point:
                    raise ValueError(f"{name} is {x.dtype}: codec {word!r} is for floats; give '' for it")
            if word.startswith(DIFFERENCE) and not self._calls:
                codec = ""
            specs.append(TensorSpec(name, source, destination, x.dtype.itemsize, codec))
        ranks = {rank for spec in specs for rank in (*spec.source.ranks, *spec.destination.ranks)}
        network = self._cost or default_network(tuple(sorted(ranks)))
        return plan_all(tuple(specs), network, self._strategy, self._piece_bytes)

    def _placed(self, name: str) -> Sequence[Placement]:
        return _named(self._placements, name, "placements")

    def _codec_of(self, name: str) -> str:
        return self._codec if isinstance(self._codec, str) else _named(self._codec, name, "codecs")


def _named(given: object, name: str, what: str) -> Any:
    if callable(given):
        return given(name)
    if isinstance(given, Mapping):
        if name not in given:
            raise ValueError(f"{name} is in the state dict and is not among the {what}; name it, or give one for all")
        return given[name]
    return given
