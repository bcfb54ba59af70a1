"""Full-graph training: halo features forward, halo gradients backward."""

from thinwire.fullgraph.distribute import distribute
from thinwire.fullgraph.layers import Unsupported

__all__ = ["Unsupported", "distribute"]
