"""Reshard tensors between device meshes, with pipelines that hide the transfers (arXiv 2211.05322).

out = crossmesh.reshard(x, dst_mesh, dst_placements)     # x: DTensor; every rank of both meshes calls it
plan = crossmesh.plan(src_mesh, src_placements, dst_mesh, dst_placements, shape, dtype, cost)
"""

from thinwire.crossmesh.layout import Layout
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import Plan
from thinwire.crossmesh.profiling import close, profile
from thinwire.crossmesh.state_dict import StateSync, reshard_state_dict
from thinwire.crossmesh.tensors import plan, reshard, reshard_async

__all__ = [
    "Layout",
    "Network",
    "Plan",
    "StateSync",
    "close",
    "plan",
    "profile",
    "reshard",
    "reshard_async",
    "reshard_state_dict",
]
