"""thinwire: distributed training that waits less for the network.

`thinwire.init()` opens a Door to the other ranks; fullgraph, minibatch, gradients and crossmesh train over it.
"""

from typing import TYPE_CHECKING

from thinwire.later import offered

if TYPE_CHECKING:
    from thinwire import codecs, crossmesh, fullgraph, gradients, graphs, launch, minibatch
    from thinwire.links import Door
    from thinwire.start import init

__all__ = ["Door", "codecs", "crossmesh", "fullgraph", "gradients", "graphs", "init", "launch", "minibatch"]

# Written here and read by the build: looking it up in the installed package's metadata takes longer than `--help`.
__version__ = "0.1.0"

__getattr__ = offered(
    __name__,
    {"Door": "thinwire.links", "init": "thinwire.start"},
    ("codecs", "crossmesh", "fullgraph", "gradients", "graphs", "launch", "minibatch"),
)
