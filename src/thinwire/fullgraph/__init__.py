"""Full-graph training: halo features forward, halo gradients backward."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thinwire.fullgraph.plan import METHODS, Plan

if TYPE_CHECKING:
    from thinwire.fullgraph.distribute import distribute
    from thinwire.fullgraph.edges import Unsupported
    from thinwire.training.finite import NotFinite

__all__ = ["METHODS", "NotFinite", "Plan", "Unsupported", "distribute"]

# These bring PyG along, which takes seconds to import: who only makes a plan does not wait for it.
_LATER = {"distribute": "fullgraph.distribute", "Unsupported": "fullgraph.edges", "NotFinite": "training.finite"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"thinwire.{_LATER[name]}"), name)
    globals()[name] = found
    return found
