"""Full-graph training: halo features forward, halo gradients backward."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thinwire.fullgraph.plan import METHODS, Plan

if TYPE_CHECKING:
    from thinwire.fullgraph.distribute import distribute
    from thinwire.fullgraph.edges import Unsupported
    from thinwire.training.finite import NotFinite
    from thinwire.training.qhadam import QHAdam

__all__ = ["METHODS", "NotFinite", "Plan", "QHAdam", "Unsupported", "distribute"]

# These bring torch or PyG along, which take seconds to import: who only makes a plan does not wait for it.
_LATER = {
    "distribute": "fullgraph.distribute",
    "Unsupported": "fullgraph.edges",
    "NotFinite": "training.finite",
    "QHAdam": "training.qhadam",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"thinwire.{_LATER[name]}"), name)
    globals()[name] = found
    return found
