"""Unit tasks: the pieces that a source tile and a destination tile share, which ranks have and need them. Pure.

(On Optimizing the Communication of Model Parallelism, arXiv 2211.05322.) A rank that already has a piece copies it and
receives nothing. Partial sums are added up first, each piece on one rank of the group that holds them.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

from thinwire.crossmesh.layout import Layout, Region, cut, in_one_stretch, meet, region_size

# A piece that is not contiguous is packed before it is sent and unpacked afterwards. It is cut into parts of this size,
# so that packing one part hides behind the transfer of another. Each part costs a route, so their number is limited.
STRIDED_BYTES = 1 << 18
MOST_PARTS = 16


@dataclass(frozen=True)
class Task:
    """`receivers` do not have the piece; `copiers` have it and need it."""

    tensor: int
    region: Region
    size_bytes: int
    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    copiers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reduction:
    """Partial sums of a region, from `ranks`, are added up on rank `at`, one of them, in this order."""

    tensor: int
    region: Region
    size_bytes: int
    at: int
    ranks: tuple[int, ...]


def unit_tasks(
    source: Layout,
    destination: Layout,
    itemsize: int,
    *,
    tensor: int = 0,
    most_bytes: int | None = None,
    strided_bytes: int = STRIDED_BYTES,
) -> tuple[list[Task], list[Reduction]]:
    """Pieces of at most `most_bytes`, if given. Pieces that are not contiguous come in parts of `strided_bytes`."""
    if destination.partial_axes:
        raise ValueError(
            f"destination {destination}: a partial tensor has no one value to send; reshard to Replicate or Shard, "
            "and redistribute there if partial sums are wanted"
        )
    if source.shape != destination.shape:
        raise ValueError(f"source has shape {source.shape}, destination {destination.shape}; both name one tensor")
    holders = _by_tile(source)
    wanted = _by_tile(destination)
    tasks: list[Task] = []
    reductions: list[Reduction] = []
    for tile, senders in holders.items():
        for other, ranks in wanted.items():
            piece = meet(tile, other)
            size = region_size(piece) * itemsize
            if not size:
                continue
            groups = _partial_groups(source, senders)
            parts = -(-size // most_bytes) if most_bytes else 1
            if source.partial_axes:
                parts = max(parts, len(groups[0]))
            if not (in_one_stretch(piece, tile) and in_one_stretch(piece, other)):
                parts = max(parts, min(MOST_PARTS, size // strided_bytes))
            limit = most_bytes // itemsize if most_bytes else None
            for index, part in enumerate(_small(cut(piece, parts), limit)):
                task = Task(tensor, part, region_size(part) * itemsize, senders, ranks)
                if source.partial_axes:
                    # One group is enough: others hold the same sums. Each of its ranks adds up its share of the parts.
                    group = groups[index % len(groups)]
                    at = group[index % len(group)]
                    reductions.append(Reduction(tensor, part, task.size_bytes, at, group))
                    task = replace(task, senders=(at,))
                receivers = tuple(rank for rank in ranks if rank not in task.senders)
                copiers = tuple(rank for rank in ranks if rank in task.senders)
                tasks.append(replace(task, receivers=receivers, copiers=copiers))
    return tasks, reductions


def _small(regions: list[Region], most_values: int | None) -> list[Region]:
    """Cut regions until none has more than `most_values`, each time along the longest dim. Single values stay whole."""
    if most_values is None:
        return regions
    small = []
    for region in regions:
        size = region_size(region)
        if size <= max(1, most_values):
            small.append(region)
        else:
            small += _small(cut(region, -(-size // max(1, most_values))), most_values)
    return small


def _by_tile(layout: Layout) -> dict[Region, tuple[int, ...]]:
    ranks_of: defaultdict[Region, list[int]] = defaultdict(list)
    for rank, tile in layout.tiles.items():
        ranks_of[tile].append(rank)
    return {tile: tuple(sorted(ranks)) for tile, ranks in ranks_of.items()}


def _partial_groups(layout: Layout, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One tile's ranks, grouped by coordinates on the axes that are not partial. Each group adds up to a full sum."""
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        rest = tuple(at for axis, at in enumerate(layout.coordinates[rank]) if axis not in layout.partial_axes)
        groups[rest].append(rank)
    return [tuple(group) for group in groups.values()]
