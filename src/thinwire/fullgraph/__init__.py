"""Full-graph training: halo features forward, halo gradients backward."""

from thinwire.fullgraph.distribute import distribute
from thinwire.fullgraph.edges import Unsupported
from thinwire.fullgraph.halo import NotFinite
from thinwire.fullgraph.plan import METHODS, Plan

__all__ = ["METHODS", "NotFinite", "Plan", "Unsupported", "distribute"]
