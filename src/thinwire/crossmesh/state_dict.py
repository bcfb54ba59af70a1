"""Send whole state dicts from trainer to server: tensors balanced together, under a memory limit, compressed if wanted.

Each tensor may have a codec: bfloat16, uniform:8, or `difference:uniform:8`, which sends only the change since the last
call. The sender remembers what receivers have, rounding errors included. The next difference corrects these errors, so
they don't add up.
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
# Copies of a piece while it is processed: packed, in float32, encoded, and decoded again.
COPIES = 4

Placements = Sequence[Placement] | Mapping[str, Sequence[Placement]] | Callable[[str], Sequence[Placement]]
Codecs = str | Mapping[str, str] | Callable[[str], str]


class Options(TypedDict, total=False):
    """Options of `StateSync` and `reshard_state_dict`."""

    codec: Codecs
    memory_bytes: int | None
    cost: Network | None
    strategy: str
    door: Door | None


def reshard_state_dict(
    state: Mapping[str, DTensor], dst_mesh: DeviceMesh, dst_placements: Placements, **options: Unpack[Options]
) -> dict[str, DTensor]:
    """Every tensor on the other mesh. Use `StateSync` to send a state dict repeatedly.

    Placements and codecs are one for all tensors, or by name. `memory_bytes` limits memory besides the tensors.
    """
    return StateSync(dst_mesh, dst_placements, **options).send(state)


class StateSync:
    """Sends a state dict repeatedly over the same meshes: planned once, with a memory for differences."""

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
        self._known: dict[int, Tensor] = {}  # by tensor: this rank's source tile as receivers have it
        self._held: dict[int, Tensor] = {}  # by tensor: this rank's destination tile as received
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
            # All ranks that hold a tile remember it, not only its sender: the next plan may choose another sender.
            self._known = {index: sources[index].float().clone() for index in differing if index in sources}
            self._held = {index: outs[index].float().clone() for index in differing if index in outs}
        self._calls += 1
        received = {}
        for index, name in enumerate(names):
            spec = plan.tensors[index]
            local = outs.get(index, torch.empty(0, dtype=state[name].dtype))
            received[name] = as_dtensor(local, self._mesh, self._placed(name), spec.destination.shape)
        return received

    def _planned(self, state: Mapping[str, DTensor]) -> Plan:
        """The plan of this call. The first call has no earlier values to differ from, so it sends them in full."""
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


def _named(option: object, name: str, what: str) -> Any:
    if callable(option):
        return option(name)
    if isinstance(option, Mapping):
        if name not in option:
            raise ValueError(f"{name} is in the state dict and is not among the {what}; name it, or give one for all")
        return option[name]
    return option
