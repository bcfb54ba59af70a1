"""thinwire: distributed training that waits less for the network."""

from importlib.metadata import version

__version__ = version("thinwire")
