"""Minibatch training on sampled neighbourhoods, features in parts (SALIENT++): VIP, cache, sampler, pipeline."""

from typing import TYPE_CHECKING

from thinwire.later import offered
from thinwire.minibatch.inclusion import vip
from thinwire.minibatch.loader import Loader
from thinwire.minibatch.methods import METHODS, POLICIES, Salient
from thinwire.minibatch.topology import Topology

if TYPE_CHECKING:
    from thinwire.minibatch.inference import exact, sampled

__all__ = ["METHODS", "POLICIES", "Loader", "Salient", "Topology", "exact", "sampled", "vip"]

# Imported on first use: they import PyG.
__getattr__ = offered(__name__, dict.fromkeys(("exact", "sampled"), "thinwire.minibatch.inference"))
