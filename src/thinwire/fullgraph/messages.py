"""The messages that a model of `thinwire train` sends in an epoch, predicted before it runs. Pure."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from thinwire.codecs import Identity
from thinwire.fullgraph.methods import Method

# Models whose layers are a sum and a linear map, in either order.
LINEAR = ("sage", "gcn")


@dataclass(frozen=True)
class LayerMessages:
    """The messages of a layer's halo rows, summed over ranks."""

    layer: int
    reads: int  # width of its input rows
    gives: int  # width of its output rows
    sends: int  # width of the rows sent: the narrower of the two if the layer's map is linear
    forward_bytes: int
    backward_bytes: int
    once: bool  # true for features, which are fetched before the first epoch and kept


def messages(model: str, widths: list[int], halo_rows: int, method: Method) -> list[LayerMessages]:
    """`widths` are those of rows from features to classes; `halo_rows` is the sum over all ranks."""
    layers = []
    for layer, (reads, gives) in enumerate(pairwise(widths)):
        if layer == 0:
            layers.append(LayerMessages(0, reads, gives, reads, Identity().nbytes((halo_rows, reads)), 0, once=True))
            continue
        sends = min(reads, gives) if model in LINEAR else reads
        size = method.message_bytes(halo_rows, sends)
        layers.append(LayerMessages(layer, reads, gives, sends, size, size, once=False))
    return layers


def to_json(rows: list[LayerMessages]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
