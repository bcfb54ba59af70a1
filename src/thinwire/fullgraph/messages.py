"""What a model of `thinwire train` sends in an epoch, known before it runs. Pure."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from thinwire.codecs import Identity
from thinwire.fullgraph.methods import Method

# Kinds whose layers are a sum and a linear map, which can change places.
LINEAR = ("sage", "gcn")


@dataclass(frozen=True)
class LayerMessages:
    """A layer's halo rows, summed over ranks."""

    layer: int
    reads: int  # width of the rows before it
    gives: int  # width of the rows after it
    sends: int  # the narrower of the two where its map is linear
    forward_bytes: int
    backward_bytes: int
    once: bool  # features: fetched before the first epoch and kept


def messages(model: str, widths: list[int], halo_rows: int, method: Method) -> list[LayerMessages]:
    """`widths` from features to classes; `halo_rows` of all ranks together."""
    found = []
    for layer, (reads, gives) in enumerate(pairwise(widths)):
        if layer == 0:
            found.append(LayerMessages(0, reads, gives, reads, Identity().nbytes((halo_rows, reads)), 0, once=True))
            continue
        sends = min(reads, gives) if model in LINEAR else reads
        size = method.message_bytes(halo_rows, sends)
        found.append(LayerMessages(layer, reads, gives, sends, size, size, once=False))
    return found


def to_json(rows: list[LayerMessages]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
