"""Reshard DTensors from one mesh to another: any shards and replicas, any ranks, with gradients.

DTensor's own `redistribute` to another mesh is not implemented; with the same placements it silently leaves the tensor
where it was.
"""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from thinwire.crossmesh.layout import Layout
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import AUTO, Plan, TensorSpec, plan_all
from thinwire.crossmesh.profiling import default_door, default_network
from thinwire.crossmesh.run import Single, start
from thinwire.links import Door

NAME = "tensor"


def plan(
    src_mesh: DeviceMesh,
    src_placements: Sequence[Placement],
    dst_mesh: DeviceMesh,
    dst_placements: Sequence[Placement],
    shape: Sequence[int],
    dtype: torch.dtype,
    cost: Network | None = None,
    *,
    strategy: str = AUTO,
    name: str = NAME,
) -> Plan:
    """Plan the resharding of a tensor. Pure if `cost` is given; else looks up hosts and takes links as equal."""
    source = layout_of(src_mesh, src_placements, tuple(shape))
    destination = layout_of(dst_mesh, dst_placements, tuple(shape))
    network = cost or default_network(tuple(sorted({*source.ranks, *destination.ranks})))
    return plan_all((TensorSpec(name, source, destination, dtype.itemsize),), network, strategy)


def layout_of(mesh: DeviceMesh, placements: Sequence[Placement], shape: tuple[int, ...]) -> Layout:
    """A DTensor's layout as a `Layout`."""
    words = tuple(_word(placement, len(shape)) for placement in placements)
    ranks = mesh.mesh.flatten().tolist()
    return Layout(tuple(mesh.mesh.shape), tuple(ranks), words, tuple(shape))


def _word(placement: Placement, dims: int) -> str:
    if isinstance(placement, _StridedShard):
        return f"S{placement.dim % max(dims, 1)}x{placement.split_factor}"
    if isinstance(placement, Shard):
        return f"S{placement.dim % max(dims, 1)}"
    if isinstance(placement, Replicate):
        return "R"
    if type(placement) is Partial:  # subclasses mask or normalise before they add
        return f"P:{placement.reduce_op}"
    raise ValueError(f"placement {placement} is not known; give Shard, Replicate, or Partial in a source")


class Options(TypedDict, total=False):
    """Options of `reshard` and `reshard_async`."""

    plan: Plan | None
    dtype: torch.dtype | None
    requires_grad: bool
    cost: Network | None
    strategy: str
    door: Door | None
    name: str


def reshard(
    x: DTensor | None, dst_mesh: DeviceMesh, dst_placements: Sequence[Placement], **options: Unpack[Options]
) -> DTensor:
    """x on another mesh. Every rank of both meshes calls this; ranks outside x's mesh pass their empty x.

    A rank that has no x at all passes None, the `plan`, the `dtype`, and the `requires_grad` that x has on other ranks.
    On a rank outside the destination mesh the result is empty. If gradients flow, call backward there too.
    """
    return reshard_async(x, dst_mesh, dst_placements, **options).wait()


class Resharding:
    """A resharding under way. x must not change before `wait` returns."""

    def __init__(self, moving: Single, x: Tensor, trip: "_Trip") -> None:
        self._moving, self._x, self._trip = moving, x, trip

    def wait(self) -> DTensor:
        local = self._moving.wait()
        if local is None:
            local = torch.empty(0, dtype=self._trip.dtype, device=self._x.device)
        return self._trip.arrived(_Reshard.apply(self._x, local, self._trip))  # type: ignore[no-untyped-call]


def reshard_async(
    x: DTensor | None,
    dst_mesh: DeviceMesh,
    dst_placements: Sequence[Placement],
    *,
    plan: Plan | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    cost: Network | None = None,
    strategy: str = AUTO,
    door: Door | None = None,
    name: str = NAME,
) -> Resharding:
    """Start a `reshard`; `wait` returns its result."""
    door = door or default_door()
    if x is None:
        if plan is None or dtype is None:
            raise ValueError("a rank without x knows neither shape nor layout; give plan= and dtype=, or its empty x")
        held: Tensor = torch.empty(0, dtype=dtype, requires_grad=requires_grad and dtype.is_floating_point)
    else:
        if plan is None:
            plan = _plan(x, dst_mesh, dst_placements, cost, strategy, name)
        held, dtype = x, x.dtype
    assert dtype is not None
    spec = plan.tensors[0]
    _check(plan, x, dst_mesh, dst_placements)
    if held.requires_grad and any(spec.source.reduction(axis) in ("max", "min") for axis in spec.source.partial_axes):
        raise ValueError(f"{name} is {spec.source}: a maximum has no gradient here; reduce it before, or detach it")
    # The backward transfer takes its forward's number: backward passes may run in another order than these calls.
    repeat = door.repeat(f"{name}/{plan.key}")
    network = cost or Network.even(plan.host_of)
    trip = _Trip(spec, tuple(dst_placements), dst_mesh, door, dtype, network, strategy, name, repeat)
    local = x._local_tensor if x is not None and door.rank in spec.source.ranks else None
    return Resharding(start(plan, local, door, name=name, dtype=dtype, device=held.device, repeat=repeat), held, trip)


def _check(plan: Plan, x: DTensor | None, mesh: DeviceMesh, placements: Sequence[Placement]) -> None:
    """Raise if the plan was made for other layouts: values would end up in the wrong place."""
    spec = plan.tensors[0]
    layouts = [("destination", layout_of(mesh, placements, spec.destination.shape), spec.destination)]
    if x is not None:
        layouts.append(("source", layout_of(x.device_mesh, x.placements, tuple(x.shape)), spec.source))
    for side, actual, planned in layouts:
        if actual != planned:
            raise ValueError(
                f"the plan's {side} is {planned} on ranks {planned.ranks} of shape {planned.shape}, "
                f"given is {actual} on ranks {actual.ranks} of shape {actual.shape}; plan again"
            )


def _plan(
    x: DTensor, mesh: DeviceMesh, placements: Sequence[Placement], cost: Network | None, strategy: str, name: str
) -> Plan:
    return plan(x.device_mesh, x.placements, mesh, placements, x.shape, x.dtype, cost, strategy=strategy, name=name)


class _Trip:
    """Turns the result into a DTensor, and sends its gradient back to the source mesh."""

    def __init__(
        self,
        spec: TensorSpec,
        placements: tuple[Placement, ...],
        mesh: DeviceMesh,
        door: Door,
        dtype: torch.dtype,
        network: Network,
        strategy: str,
        name: str,
        repeat: int,
    ) -> None:
        self.spec, self.placements, self.mesh, self.door, self.dtype = spec, placements, mesh, door, dtype
        self._network, self._strategy, self._name, self._repeat = network, strategy, name, repeat

    def arrived(self, local: Tensor) -> DTensor:
        return as_dtensor(local, self.mesh, self.placements, self.spec.destination.shape)

    def back(self, gradient: Tensor) -> Tensor | None:
        """This rank's tile of the gradient of the source."""
        spec = TensorSpec(
            f"{self.spec.name} gradient", self.spec.destination, self.spec.source.replicated(), gradient.dtype.itemsize
        )
        way_back = plan_all((spec,), self._network, self._strategy)
        held = gradient if self.door.rank in spec.source.ranks else None
        name = f"{self._name} gradient"
        moving = start(
            way_back, held, self.door, name=name, dtype=gradient.dtype, device=gradient.device, repeat=self._repeat
        )
        return moving.wait()


class _Reshard(torch.autograd.Function):
    """Backward reshards from the destination to the source. Replicas of a gradient are equal, so only one is sent.

    x is passed as a DTensor: `to_local` has no gradient on a rank outside the mesh, and the graph must exist there too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, result: Tensor, trip: _Trip) -> Tensor:
        ctx.trip = trip
        ctx.origin = (x.device_mesh, x.placements, x._local_tensor.shape) if isinstance(x, DTensor) else None
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        tile = ctx.trip.back(gradient.contiguous())
        if ctx.origin is None:
            return gradient.new_empty(0), None, None
        mesh, placements, shape = ctx.origin
        # Every rank that holds a partial sum gets the gradient of the full sum.
        words = [Replicate() if isinstance(placement, Partial) else placement for placement in placements]
        local = gradient.new_empty(shape) if tile is None else tile
        for size, placement in zip(mesh.mesh.shape, placements, strict=True):
            if isinstance(placement, Partial) and placement.reduce_op == "avg":
                local = local / size
        return as_dtensor(local, mesh, words, ctx.trip.spec.source.shape), None, None


def as_dtensor(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: tuple[int, ...]) -> DTensor:
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
