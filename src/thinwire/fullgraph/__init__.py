"""Full-graph training: halo features forward, halo gradients backward."""

from typing import TYPE_CHECKING

from thinwire.fullgraph.plan import METHODS, Plan
from thinwire.later import offered

if TYPE_CHECKING:
    from thinwire.fullgraph.distribute import distribute
    from thinwire.fullgraph.edges import Unsupported
    from thinwire.training.finite import NotFinite
    from thinwire.training.qhadam import QHAdam

__all__ = ["METHODS", "NotFinite", "Plan", "QHAdam", "Unsupported", "distribute"]

# These bring torch or PyG along, which take seconds to import: who only makes a plan does not wait for it.
__getattr__ = offered(
    __name__,
    {
        "distribute": "thinwire.fullgraph.distribute",
        "Unsupported": "thinwire.fullgraph.edges",
        "NotFinite": "thinwire.training.finite",
        "QHAdam": "thinwire.training.qhadam",
    },
)
