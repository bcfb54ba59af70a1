"""Methods of full-graph training, one per file: how each encodes messages, and when it waits for them."""

from thinwire.fullgraph.methods.adaqp import AdaQP
from thinwire.fullgraph.methods.boundary_sampling import BoundarySampling
from thinwire.fullgraph.methods.exact import Exact
from thinwire.fullgraph.methods.method import Method
from thinwire.fullgraph.methods.pipe import Pipe
from thinwire.fullgraph.methods.sylvie import Sylvie
from thinwire.fullgraph.methods.sylvie3d import Sylvie3D

__all__ = ["METHODS", "AdaQP", "BoundarySampling", "Exact", "Method", "Pipe", "Sylvie", "Sylvie3D"]

METHODS: dict[str, type[Method]] = {
    "exact": Exact,
    "pipe": Pipe,
    "sylvie": Sylvie,
    "sylvie3d": Sylvie3D,
    "adaqp": AdaQP,
    "bns": BoundarySampling,
}
