"""Minibatch training on sampled neighbourhoods, features in parts (SALIENT++). So far: what a batch will touch."""

from thinwire.minibatch.topology import Topology
from thinwire.minibatch.vip import vip

__all__ = ["Topology", "vip"]
