"""Which rank holds which part of a tensor: a mesh, a placement for each mesh axis, and the tensor's shape. Pure.

Placements are DTensor's, abbreviated: R (replicated), S0 (dim 0 sharded), S0x4 (a strided shard, split factor 4, as
FSDP over tensor parallelism makes them), P (partial sums), P:avg, P:max, P:min. Chunks are as in torch.chunk: by
ceiling division, so that the last ranks may hold less or nothing. Several axes on one dim nest from left to right.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

# Indices of one dim, as (start, stop) ranges in memory order.
Ranges = tuple[tuple[int, int], ...]
# A part of a tensor: the product of the ranges of its dims.
Region = tuple[Ranges, ...]

REPLICATED = "R"
PARTIAL = "P"
REDUCTIONS = ("sum", "avg", "max", "min")
WORD = re.compile(r"R|S(?P<dim>\d+)(?:x(?P<stride>[1-9]\d*))?|P(?::(?P<reduction>\w+))?")


@dataclass(frozen=True)
class Layout:
    """`ranks` fill the mesh row by row. A rank's tile follows from its coordinates in the mesh."""

    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    placements: tuple[str, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if math.prod(self.mesh_shape) != len(self.ranks) or len(set(self.ranks)) != len(self.ranks):
            raise ValueError(
                f"a mesh of shape {self.mesh_shape} has {math.prod(self.mesh_shape)} places; ranks {self.ranks}"
            )
        if not self.ranks:
            raise ValueError("a mesh without ranks holds nothing; give at least one rank")
        if len(self.placements) != len(self.mesh_shape):
            raise ValueError(
                f"{len(self.placements)} placements {self.placements} for a mesh of {len(self.mesh_shape)} axes; "
                "give one for each"
            )
        for word in self.placements:
            match = WORD.fullmatch(word)
            if match is None or (match["reduction"] or "sum") not in REDUCTIONS:
                raise ValueError(
                    f"placement {word!r} is not known; give R, S0, S1, ..., S0x4, P, P:avg, P:max or P:min"
                )
            if match["dim"] is not None and int(match["dim"]) >= len(self.shape):
                raise ValueError(f"placement {word!r} shards a dim that a tensor of shape {self.shape} has not")
        if len({self.reduction(axis) for axis in self.partial_axes}) > 1:
            raise ValueError(f"placements {self.placements} reduce in two ways, whose order is not said; give one")

    @property
    def partial_axes(self) -> tuple[int, ...]:
        return tuple(axis for axis, word in enumerate(self.placements) if word.startswith(PARTIAL))

    def reduction(self, axis: int) -> str:
        return self.placements[axis].partition(":")[2] or "sum"

    @cached_property
    def coordinates(self) -> dict[int, tuple[int, ...]]:
        """Each rank's coordinates, in the order in which DTensor lays out its data.

        DTensor orders data by process group, whose ranks ascend, and not by mesh (docs/decisions/0012). We do the same
        if every rank then has its own coordinates and shards are equal. Otherwise torch itself loses data, and we use
        the mesh's order.
        """
        by_mesh = dict(zip(self.ranks, itertools.product(*map(range, self.mesh_shape)), strict=True))
        by_group = {
            rank: tuple(self._among(rank, by_mesh, axis) for axis in range(len(self.mesh_shape))) for rank in by_mesh
        }
        if len(set(by_group.values())) == len(by_group):
            sizes = {tuple(map(ranges_size, self._tile(position))) for position in by_group.values()}
            if len(sizes) == 1:
                return by_group
        return by_mesh

    def _among(self, rank: int, coordinates: dict[int, tuple[int, ...]], axis: int) -> int:
        """How many ranks along this axis have a lower number than this one."""
        position = coordinates[rank]
        rest = (*position[:axis], *position[axis + 1 :])
        line = [other for other, there in coordinates.items() if (*there[:axis], *there[axis + 1 :]) == rest]
        return sorted(line).index(rank)

    @cached_property
    def tiles(self) -> dict[int, Region]:
        return {rank: self._tile(position) for rank, position in self.coordinates.items()}

    def _tile(self, position: Sequence[int]) -> Region:
        dims: list[Ranges] = [((0, size),) if size else () for size in self.shape]
        for axis, word in enumerate(self.placements):
            match = WORD.fullmatch(word)
            assert match is not None
            if match["dim"] is not None:
                dim = int(match["dim"])
                dims[dim] = _shard(dims[dim], self.mesh_shape[axis], position[axis], int(match["stride"] or 1))
        return tuple(dims)

    def replicated(self) -> "Layout":
        """This layout with partial sums added up. The gradient of a partial tensor has it."""
        words = tuple(REPLICATED if word.startswith(PARTIAL) else word for word in self.placements)
        return Layout(self.mesh_shape, self.ranks, words, self.shape)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.mesh_shape))} {' '.join(self.placements)}"


def ranges_size(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def region_size(region: Region) -> int:
    return math.prod(map(ranges_size, region))


def region_shape(region: Region) -> tuple[int, ...]:
    return tuple(map(ranges_size, region))


def meet(a: Region, b: Region) -> Region:
    """The intersection of two regions. Indices ascend in both, so the order is the same."""
    return tuple(_meet_ranges(a_ranges, b_ranges) for a_ranges, b_ranges in zip(a, b, strict=True))


def _meet_ranges(a: Ranges, b: Ranges) -> Ranges:
    overlaps = ((max(low, start), min(high, stop)) for low, high in a for start, stop in b)
    return tuple(sorted((low, high) for low, high in overlaps if low < high))


def in_one_stretch(region: Region, tile: Region) -> bool:
    """Whether the region is contiguous in a tensor that holds the tile."""
    if any(len(ranges) != 1 for ranges in region):
        return False
    # After the first dim with more than one index, the region must span the whole tile.
    inner = itertools.dropwhile(lambda pair: ranges_size(pair[0]) == 1, zip(region, tile, strict=True))
    return all(
        ranges_size(region_ranges) == ranges_size(tile_ranges)
        for region_ranges, tile_ranges in itertools.islice(inner, 1, None)
    )


def cut(region: Region, parts: int) -> list[Region]:
    """Cut a region into at most `parts` parts of about equal size, along its longest dim."""
    shape = region_shape(region)
    if parts < 2 or not region_size(region) or not shape:
        return [region]
    dim = max(range(len(shape)), key=lambda index: shape[index])
    pieces = [_shard(region[dim], parts, number, 1) for number in range(parts)]
    return [(*region[:dim], piece, *region[dim + 1 :]) for piece in pieces if piece]


def local_slices(region: Region, tile: Region) -> list[list[slice]]:
    """For each dim, the slices of the region's ranges in a rank's local tensor, which holds the tile."""
    return [_local_ranges(region_ranges, tile_ranges) for region_ranges, tile_ranges in zip(region, tile, strict=True)]


def _local_ranges(region_ranges: Ranges, tile_ranges: Ranges) -> list[slice]:
    starts = list(itertools.accumulate((stop - start for start, stop in tile_ranges), initial=0))
    slices = []
    for low, high in region_ranges:
        at = next(index for index, (start, stop) in enumerate(tile_ranges) if start <= low and high <= stop)
        begin = starts[at] + low - tile_ranges[at][0]
        slices.append(slice(begin, begin + high - low))
    return slices


def _shard(ranges: Ranges, count: int, number: int, stride: int) -> Ranges:
    """Chunk `number` of `count`. With a stride, chunk `number` of each of `stride` blocks."""
    size = ranges_size(ranges)
    chunks: list[tuple[int, int]] = []
    for block in range(stride):
        low, high = _chunk(0, size, stride, block)
        chunks += _window(ranges, *_chunk(low, high, count, number))
    return tuple(chunks)


def _chunk(low: int, high: int, count: int, number: int) -> tuple[int, int]:
    chunk = -(-(high - low) // count)
    return min(high, low + chunk * number), min(high, low + chunk * (number + 1))


def _window(ranges: Ranges, low: int, high: int) -> list[tuple[int, int]]:
    """Positions low to high of the ranges, laid end to end."""
    window, at = [], 0
    for start, stop in ranges:
        begin, end = max(low, at), min(high, at + stop - start)
        if begin < end:
            window.append((start + begin - at, start + end - at))
        at += stop - start
    return window
