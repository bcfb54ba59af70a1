"""Units: the parameters that FSDP2 sends and receives together, those of a module that was given to `fully_shard`.

The only file that uses private parts of torch (torch 2.13: `torch/distributed/fsdp/_fully_shard`).
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
    """One unit on one rank. `names` are names of `model.named_parameters()`, in FSDP's order.

    A slice is what one rank of the shard group owns: a part of each parameter, concatenated. Each part has as many
    values as the first rank's part of that parameter; where a rank owns fewer, the rest is padding.
    """

    def __init__(self, number: int, name: str, module: Any, group: Any, names: list[str]) -> None:
        self.number, self.name = number, name
        self._module, self._group = module, group
        self._by_name = dict(zip(names, group.fsdp_params, strict=True))
        self.names = tuple(names)
        self.sizes = {name: param.padded_sharded_param_size.numel() for name, param in self._by_name.items()}
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
        return [name for name, param in self._by_name.items() if param.sharded_param.requires_grad]

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
        """Whether gradients are added up and divided by the user's factor. Otherwise FSDP takes the mean."""
        return self._group.gradient_divide_factor is not None

    @property
    def reduce_dtype(self) -> torch.dtype:
        """The dtype of the gradients that are reduced."""
        policy = self._group.mp_policy
        return policy.reduce_dtype or policy.param_dtype or self._group.fsdp_params[0].sharded_param.dtype

    def divisors(self) -> tuple[float, float]:
        """What FSDP itself divides by before and after it reduces (for float16, or where asked to); else 1."""
        before, after, _, _ = _get_gradient_divide_factors(
            self.shard_group,
            self.replicate_group if isinstance(self._group.mesh_info, DDPMeshInfo) else None,
            self.reduce_dtype,
            self.device.type,
            self._group.gradient_divide_factor,
            self._group.force_sum_reduction_for_comms,
        )
        return before or 1.0, after or 1.0

    def reduces_replicas(self) -> bool:
        """False after `set_requires_all_reduce(False)`: gradients are kept, to be summed over replicas later."""
        return bool(self._group.all_reduce_grads)

    def gathers_from_fewer(self) -> bool:
        """Whether the next gather is over fewer ranks: backward's, if parameters were resharded so after forward."""
        return bool(self._group.is_sharded_post_forward)

    def versions(self) -> tuple[int, ...]:
        """Changes with every in-place operation on a parameter, for instance an optimizer's step."""
        return tuple(
            version
            for param in self._by_name.values()
            for version in (param.sharded_param._version, param.sharded_param._local_tensor._version)
        )

    def shard(self, name: str) -> Tensor:
        """This rank's part of a parameter, with its padding, flat."""
        shard: Tensor = self._by_name[name]._sharded_param_data
        return shard.detach()

    def sharded(self, name: str, padded: Tensor) -> DTensor:
        """This rank's slice of a tensor of the parameter's shape, as a DTensor laid out like the parameter."""
        param = self._by_name[name]
        local = padded[: param.sharded_size.numel()].view(param.sharded_size)
        return param.to_sharded_dtensor(local.clone())

    def padded(self, name: str, local: Tensor) -> Tensor:
        """The inverse of `sharded`: this rank's local values, flat and with padding."""
        out = torch.zeros(self.sizes[name], dtype=torch.float32, device=self.device)
        out[: local.numel()] = local.reshape(-1)
        return out

    def beside(self, compressed: dist.ProcessGroup) -> list[dist.ProcessGroup]:
        """The groups along the other dimensions of the parameters' meshes: replicas or shards, tensor parallelism."""
        compressed_ranks = dist.get_process_group_ranks(compressed)
        by_ranks = {}
        for param in self._by_name.values():
            for dim in range(param._spmd_mesh.ndim):
                group = param._spmd_mesh.get_group(dim)
                by_ranks[tuple(dist.get_process_group_ranks(group))] = group
        return [group for ranks, group in by_ranks.items() if list(ranks) != compressed_ranks and len(ranks) > 1]

    def use_reduce_scatter(self, comm: ReduceScatter) -> None:
        self._module.set_custom_reduce_scatter(comm)

    def use_all_gather(self, comm: AllGather) -> None:
        self._module.set_custom_all_gather(comm)

    def use_all_reduce(self, hook: Callable[[Tensor], None]) -> None:
        """Replace FSDP's all-reduce between replicas by this hook.

        torch offers a hook after the reduce-scatter, but with an HSDP mesh it runs its own all-reduce too. So FSDP is
        told that the unit is only sharded. Parameters keep their mesh of two dimensions.
        """
        mesh, user_hook = self._group.mesh_info, self._group._all_reduce_hook
        sharded = FSDPMeshInfo(mesh.mesh, mesh.shard_mesh_dim, None, mesh.dp_mesh_dims, mesh.spmd_mesh)
        sharded.reduce_scatter_process_group = mesh.reduce_scatter_process_group
        self._group.mesh_info = sharded
        if self._group.post_forward_mesh_info == mesh:
            self._group.post_forward_mesh_info = sharded

        def run_hooks(reduced: Tensor) -> None:
            hook(reduced)
            if user_hook is not None:
                user_hook(reduced)

        self._module.set_all_reduce_hook(run_hooks)

    def _note_what_is_reduced(self) -> None:
        """Note before each reduce-scatter which parameters got a gradient.

        FSDP gives a reduce-scatter one flat tensor of these parameters alone, and does not say which they are.
        """
        reduce = self._group.post_backward

        def post_backward(*unused: Any) -> None:
            self._reduced = tuple(name for name, param in self._by_name.items() if self._has_gradient(param))
            reduce(*unused)

        self._group.post_backward = post_backward

    def _has_gradient(self, param: Any) -> bool:
        unsharded = getattr(param, "_unsharded_param", None)
        if unsharded is None:
            return False
        if param.unsharded_accumulated_grad is not None or unsharded.grad is not None:
            return True
        return bool(self._group.reduce_scatter_unused_params and unsharded.requires_grad)


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
            param_names = [_name_of(param._module_info, names) for param in group.fsdp_params]
            units.append(Unit(len(units), names[id(module)] or "root", module, group, param_names))
    return units


def _name_of(info: Any, names: dict[int, str]) -> str:
    return ".".join(filter(None, (names[id(info.module)], info.param_name)))
