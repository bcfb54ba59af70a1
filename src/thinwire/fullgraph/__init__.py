"""Full-graph training: halo features forward, halo gradients backward."""

from thinwire.fullgraph.distribute import distribute
from thinwire.fullgraph.layers import Unsupported
from thinwire.fullgraph.plan import METHODS, Plan

__all__ = ["METHODS", "Plan", "Unsupported", "distribute"]
