"""Minibatch training on sampled neighbourhoods, features in parts (SALIENT++): VIP, cache, sampler, pipeline."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thinwire.minibatch.loader import Loader
from thinwire.minibatch.plan import POLICIES, Plan
from thinwire.minibatch.topology import Topology
from thinwire.minibatch.vip import vip

if TYPE_CHECKING:
    from thinwire.minibatch.inference import exact, sampled

__all__ = ["POLICIES", "Loader", "Plan", "Topology", "exact", "sampled", "vip"]


def __getattr__(name: str) -> Any:
    if name not in ("exact", "sampled"):  # they bring PyG along, which takes seconds to import
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("thinwire.minibatch.inference"), name)
