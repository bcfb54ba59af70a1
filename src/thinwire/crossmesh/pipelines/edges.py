"""What passes between pipeline stages: edges, the ranks of each stage, and a tensor's shape as a message."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.crossmesh.layout import Layout, region_size

SHARDED, REPLICATED = "S0", "R"
MOST_DIMS = 8
# Messages send a dtype as its index here, so only add entries at the end.
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


@dataclass(frozen=True)
class Edge:
    """The tensor `name` that stage `source` returns and `destination`, any later stage, takes."""

    name: str
    source: int
    destination: int


@dataclass(frozen=True)
class StageRanks:
    """A stage's ranks. They split each micro-batch by rows (S0), or each works on all of it (R)."""

    ranks: tuple[int, ...]
    placement: str = SHARDED

    @property
    def shares(self) -> bool:
        """Whether each rank has only some rows, and so only a part of the weights' gradients."""
        return self.placement == SHARDED and len(self.ranks) > 1

    def layout(self, shape: Sequence[int]) -> Layout:
        placement = self.placement if shape else REPLICATED
        return Layout((len(self.ranks),), self.ranks, (placement,), tuple(shape))

    def rows(self, num_rows: int, rank: int) -> slice:
        """This rank's rows of a micro-batch."""
        if not self.shares:
            return slice(0, num_rows)
        tiles = self.layout((num_rows,)).tiles
        if any(region_size(tile) == 0 for tile in tiles.values()):
            raise ValueError(
                f"a micro-batch of {num_rows} rows leaves some of the stage's {len(self.ranks)} ranks without any; "
                "give larger micro-batches, or placement R"
            )
        ((start, stop),) = tiles[rank][0]
        return slice(start, stop)


@dataclass(frozen=True)
class Kind:
    """A tensor's shape and dtype over all ranks of a stage together. `num_rows` is the micro-batch's number of rows."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_gradient: bool
    num_rows: int

    def to_message(self) -> Tensor:
        numbers = [DTYPES.index(self.dtype), self.needs_gradient, self.num_rows, len(self.shape), *self.shape]
        message = torch.zeros(MESSAGE_LENGTH, dtype=torch.int64)
        message[: len(numbers)] = torch.tensor(numbers)
        return message

    @staticmethod
    def from_message(data: Tensor) -> "Kind":
        dtype, needs_gradient, num_rows, num_dims, *shape = data.view(torch.int64).tolist()
        return Kind(tuple(shape[:num_dims]), DTYPES[dtype], bool(needs_gradient), num_rows)

    @staticmethod
    def of(x: Tensor, needs_gradient: bool, stage: StageRanks, num_rows: int, rank: int, name: str) -> "Kind":
        """The kind of a tensor, from one rank's part of it."""
        if x.dtype not in DTYPES or x.dim() > MOST_DIMS:
            raise ValueError(
                f"{name!r} is {x.dtype} with {x.dim()} dims; give one of {DTYPES}, {MOST_DIMS} dims or less"
            )
        shape = tuple(x.shape)
        if stage.shares:
            rows = stage.rows(num_rows, rank)
            if not shape or shape[0] != rows.stop - rows.start:
                raise ValueError(
                    f"{name!r} has shape {shape} on rank {rank}, whose part of the micro-batch has "
                    f"{rows.stop - rows.start} rows; where ranks share a batch, dim 0 must be its rows"
                )
            shape = (num_rows, *shape[1:])
        return Kind(shape, x.dtype, needs_gradient, num_rows)


MESSAGE_LENGTH = 4 + MOST_DIMS
MESSAGE_BYTES = 8 * MESSAGE_LENGTH


def chain(num_stages: int) -> tuple[Edge, ...]:
    """Edges where each stage's only output is the next stage's input."""
    return tuple(Edge(f"h{stage}", stage - 1, stage) for stage in range(1, num_stages))


def check(edges: Sequence[Edge], num_stages: int) -> None:
    taken: set[tuple[str, int]] = set()
    sources: dict[str, int] = {}
    for edge in edges:
        if not 0 <= edge.source < edge.destination < num_stages:
            raise ValueError(f"{edge}: there are {num_stages} stages, and an edge must go to a later one")
        if (edge.name, edge.destination) in taken or sources.setdefault(edge.name, edge.source) != edge.source:
            raise ValueError(f"{edge}: the name {edge.name!r} is taken; give each tensor of a stage a name of its own")
        taken.add((edge.name, edge.destination))


def check_stages(stages: Sequence[StageRanks], world_size: int) -> None:
    ranks = [rank for stage in stages for rank in stage.ranks]
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < world_size for rank in ranks):
        raise ValueError(f"ranks are {ranks}; give each at most once, and only 0 to {world_size - 1}")
    for number, stage in enumerate(stages):
        if not stage.ranks or stage.placement not in (SHARDED, REPLICATED):
            raise ValueError(f"stage {number} is {stage}; give at least one rank, and S0 or R")


def stage_of(rank: int, stages: Sequence[StageRanks]) -> int:
    for number, stage in enumerate(stages):
        if rank in stage.ranks:
            return number
    raise ValueError(f"rank {rank} is in no stage; only ranks that take part make a pipeline")
