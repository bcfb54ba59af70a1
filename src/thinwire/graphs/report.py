"""How good a partition is: the cut, the halo, the balance, and what they would cost in bytes an epoch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.codecs import Uniform
from thinwire.graphs.graph import TRAIN, VALIDATION
from thinwire.graphs.shard import Shard


@dataclass(frozen=True)
class PartRow:
    """What one part has of the graph."""

    part: int
    owned: int
    central: int
    marginal: int
    halo: int
    edges: int
    cut_edges: int
    train: int
    validation: int
    other: int  # nodes that are neither
    degrees: int  # the sum of its nodes' in- and out-degrees

    @staticmethod
    def of(shard: Shard) -> "PartRow":
        return PartRow(
            part=shard.part,
            owned=shard.num_owned,
            central=shard.num_central,
            marginal=shard.num_owned - shard.num_central,
            halo=shard.num_halo,
            edges=len(shard.indices),
            cut_edges=int((shard.indices >= shard.num_owned).sum()),
            train=int((shard.split == TRAIN).sum()),
            validation=int((shard.split == VALIDATION).sum()),
            other=int((shard.split > VALIDATION).sum()),
            degrees=int((shard.in_degree[: shard.num_owned] + shard.out_degree[: shard.num_owned]).sum()),
        )


def report(rows: Sequence[PartRow], *, layers: int, hidden: int) -> dict[str, Any]:
    """How good a partition is. `bytes_per_epoch` are those of a model with so many layers of this width: rows forward,
    gradients back. Layer 0's rows are fetched once and not counted.
    """
    halo = sum(row.halo for row in rows)
    num_edges = sum(row.edges for row in rows)
    messages = 2 * (layers - 1) * halo
    return {
        "parts": [asdict(row) for row in rows],
        "cut_edges": sum(row.cut_edges for row in rows),
        "cut_share": sum(row.cut_edges for row in rows) / max(1, num_edges),
        "halo_rows": halo,
        "balance": {
            name: _balance([getattr(row, name) for row in rows])
            for name in ("owned", "edges", "train", "validation", "other", "degrees", "halo")
        },
        "layers": layers,
        "hidden": hidden,
        "bytes_per_epoch": {
            "float32": messages * hidden * 4,
            "1 bit": messages * Uniform(1).nbytes((1, hidden)),
        },
    }


def _balance(values: Sequence[int]) -> float:
    """The largest part's share over the mean; 1 is perfect."""
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0
