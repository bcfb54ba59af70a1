"""Full-graph training: halo features forward, halo gradients backward."""

from typing import TYPE_CHECKING

from thinwire.fullgraph.methods import METHODS, AdaQP, BoundarySampling, Exact, Method, Pipe, Sylvie, Sylvie3D
from thinwire.later import offered

if TYPE_CHECKING:
    from thinwire.fullgraph.distributing import distribute
    from thinwire.fullgraph.edges import Unsupported
    from thinwire.training.finite import NotFinite
    from thinwire.training.qhadam import QHAdam

__all__ = [
    "METHODS",
    "AdaQP",
    "BoundarySampling",
    "Exact",
    "Method",
    "NotFinite",
    "Pipe",
    "QHAdam",
    "Sylvie",
    "Sylvie3D",
    "Unsupported",
    "distribute",
]

# Imported on first use: they import torch or PyG, which takes seconds. Choosing a method does not need them.
__getattr__ = offered(
    __name__,
    {
        "distribute": "thinwire.fullgraph.distributing",
        "Unsupported": "thinwire.fullgraph.edges",
        "NotFinite": "thinwire.training.finite",
        "QHAdam": "thinwire.training.qhadam",
    },
)
