"""What FSDP2 sends and receives together: the parameters of a module that was given to `fully_shard`.

The one place that knows torch's private parts (torch 2.13: `torch/distributed/fsdp/_fully_shard`).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo
from torch.distributed.tensor import DTensor

__all__ = ["AllGather", "ReduceScatter", "Unit", "units_of"]


class Unit:
    """One such group of parameters, on one rank. `names` are those of `model.named_parameters()`, in FSDP's order.

    A slice is what one rank of the shard group owns: of every parameter, one after the other, as many values as the
    first rank's part has; where a parameter has no whole part for a rank, the rest is padding.
    """

    def __init__(self, number: int, name: str, module: Any, group: Any, names: list[str]) -> None:
        self.number, self.name = number, name
        self._module, self._group = module, group
        self._by_name = dict(zip(names, group.fsdp_params, strict=True))
        self.names = tuple(names)
        self.sizes = {name: each.padded_sharded_param_size.numel() for name, each in self._by_name.items()}
        self.device: torch.device = group.device
        mesh = group.mesh_info
        self.shard_group: dist.ProcessGroup = mesh.shard_process_group
        self.replicate_group: dist.ProcessGroup | None = (
            mesh.replicate_process_group if isinstance(mesh, DDPMeshInfo) else None
        )
        self._reduced: tuple[str, ...] = ()
        self._note_what_is_reduced()

    @property
    def rank(self) -> int:
        return dist.get_rank(self.shard_group)

    @property
    def num_shards(self) -> int:
        return dist.get_world_size(self.shard_group)

    @property
    def num_replicas(self) -> int:
        return 1 if self.replicate_group is None else dist.get_world_size(self.replicate_group)

    @property
    def trained(self) -> list[str]:
        return [name for name, each in self._by_name.items() if each.sharded_param.requires_grad]

    def reduced(self, num_values: int) -> tuple[str, ...]:
        """The parameters whose gradients are being reduced now, checked against the length of a slice."""
        expected = sum(self.sizes[name] for name in self._reduced)
        if expected != num_values:
            raise RuntimeError(
                f"compress: FSDP reduces {num_values} values of {self.name!r}, its parameters with a gradient have "
                f"{expected}; this is made for torch 2.13, you have {torch.__version__}"
            )
        return self._reduced

    def sums(self) -> bool:
        """Gradients are added up and divided by a factor of the user's; else FSDP takes the mean."""
        return self._group.gradient_divide_factor is not None

    def divisors(self) -> tuple[float, float]:
        """What FSDP itself divides by before and after it reduces, where it does: for float16, or where asked to."""
        policy = self._group.mp_policy
        dtype = policy.reduce_dtype or policy.param_dtype or self._group.fsdp_params[0].sharded_param.dtype
        before, after, _, _ = _get_gradient_divide_factors(
            self.shard_group,
            self.replicate_group if isinstance(self._group.mesh_info, DDPMeshInfo) else None,
            dtype,
            self.device.type,
            self._group.gradient_divide_factor,
            self._group.force_sum_reduction_for_comms,
        )
        return before or 1.0, after or 1.0

    def reduces_replicas(self) -> bool:
        """False between `set_requires_all_reduce(False)` and its end: gradients wait to be summed over replicas."""
        return bool(self._group.all_reduce_grads)

    def gathers_from_fewer(self) -> bool:
        """In backward, where parameters were resharded over fewer ranks after forward."""
        return bool(self._group.is_sharded_post_forward)

    def versions(self) -> tuple[int, ...]:
        """Changes with every in-place operation on a parameter, an optimizer's step for one."""
        return tuple(
            version
            for each in self._by_name.values()
            for version in (each.sharded_param._version, each.sharded_param._local_tensor._version)
        )

    def shard(self, name: str) -> Tensor:
        """This rank's part of a parameter, with its padding, flat."""
        found: Tensor = self._by_name[name]._sharded_param_data
        return found.detach()

    def sharded(self, name: str, padded: Tensor) -> DTensor:
        """This rank's slice of something of the parameter's shape, as a DTensor laid out like the parameter."""
        param = self._by_name[name]
        local = padded[: param.sharded_size.numel()].view(param.sharded_size)
        return param.to_sharded_dtensor(local.clone())

    def padded(self, name: str, local: Tensor) -> Tensor:
        """The other way round."""
        out = torch.zeros(self.sizes[name], dtype=torch.float32, device=self.device)
        out[: local.numel()] = local.reshape(-1)
        return out

    def beside(self, compressed: dist.ProcessGroup) -> list[dist.ProcessGroup]:
        """The other dimensions of the meshes that parameters lie on: replicas or shards, tensor parallelism."""
        own = dist.get_process_group_ranks(compressed)
        found = {}
        for each in self._by_name.values():
            for dim in range(each._spmd_mesh.ndim):
                group = each._spmd_mesh.get_group(dim)
                found[tuple(dist.get_process_group_ranks(group))] = group
        return [group for ranks, group in found.items() if list(ranks) != own and len(ranks) > 1]

    def use_reduce_scatter(self, comm: ReduceScatter) -> None:
        self._module.set_custom_reduce_scatter(comm)

    def use_all_gather(self, comm: AllGather) -> None:
        self._module.set_custom_all_gather(comm)

    def use_all_reduce(self, hook: Callable[[Tensor], None]) -> None:
        """Instead of FSDP's own between replicas: to FSDP, the unit is sharded from now on, and no more than that.

        torch offers a hook after the reduce-scatter, but with an HSDP mesh only beside its own all-reduce. Parameters
        keep their mesh of two dimensions.
        """
        mesh, users = self._group.mesh_info, self._group._all_reduce_hook
        sharded = FSDPMeshInfo(mesh.mesh, mesh.shard_mesh_dim, None, mesh.dp_mesh_dims, mesh.spmd_mesh)
        sharded.reduce_scatter_process_group = mesh.reduce_scatter_process_group
        self._group.mesh_info = sharded
        if self._group.post_forward_mesh_info == mesh:
            self._group.post_forward_mesh_info = sharded

        def both(reduced: Tensor) -> None:
            hook(reduced)
            if users is not None:
                users(reduced)

        self._module.set_all_reduce_hook(both)

    def _note_what_is_reduced(self) -> None:
        """FSDP hands a reduce-scatter one flat tensor, of those parameters alone that got a gradient.

        Which ones can be seen just before it gathers them.
        """
        reduce = self._group.post_backward

        def post_backward(*unused: Any) -> None:
            self._reduced = tuple(name for name, each in self._by_name.items() if self._has_gradient(each))
            reduce(*unused)

        self._group.post_backward = post_backward

    def _has_gradient(self, param: Any) -> bool:
        own = getattr(param, "_unsharded_param", None)
        if own is None:
            return False
        if param.unsharded_accumulated_grad is not None or own.grad is not None:
            return True
        return bool(self._group.reduce_scatter_unused_params and own.requires_grad)


def units_of(model: nn.Module) -> list[Unit]:
    """All units, in the order of modules, which is the same on all ranks."""
    names = {id(module): name for name, module in reversed(list(model.named_modules()))}
    units: list[Unit] = []
    seen: set[int] = set()
    for module in model.modules():
        for group in module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else ():
            if id(group) in seen or not group.fsdp_params:
                continue
            seen.add(id(group))
            if not isinstance(group.mesh_info, FSDPMeshInfo):
                raise ValueError(
                    f"compress: {names[id(module)] or 'the model'} is replicated, not sharded; use gradients.wrap"
                )
            own = [_name_of(each._module_info, names) for each in group.fsdp_params]
            units.append(Unit(len(units), names[id(module)] or "root", module, group, own))
    return units


def _name_of(info: Any, names: dict[int, str]) -> str:
    return ".".join(filter(None, (names[id(info.module)], info.param_name)))
