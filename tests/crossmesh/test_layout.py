"""Tiles: torch's own where torch is right, a partition of the tensor always."""

import random

import pytest
import torch
from torch.distributed.tensor import Partial, Shard
from torch.distributed.tensor.placement_types import _MaskPartial

from tests.crossmesh.made import drawn_layout, drawn_shape, tiles
from thinwire.crossmesh.layout import Layout, cut, in_one_stretch, region_shape, region_size
from thinwire.crossmesh.tasks import unit_tasks
from thinwire.crossmesh.tensors import _word


def test_chunks_are_torch_chunks() -> None:
    layout = Layout((3,), (0, 1, 2), ("S0",), (7,))
    assert [layout.tiles[rank] for rank in range(3)] == [(((0, 3),),), (((3, 6),),), (((6, 7),),)]
    short = Layout((4,), (0, 1, 2, 3), ("S0",), (5,))
    assert [region_size(short.tiles[rank]) for rank in range(4)] == [2, 2, 1, 0]
    for size, count in ((7, 4), (8, 3), (1, 2), (0, 2), (5, 4)):
        layout = Layout((count,), tuple(range(count)), ("S0",), (size,))
        chunks = list(torch.arange(size).chunk(count)) if size else []
        sizes = [len(chunk) for chunk in chunks] + [0] * (count - len(chunks))
        assert [region_size(layout.tiles[rank]) for rank in range(count)] == sizes
        expected, _ = Shard(0)._split_tensor(torch.arange(size), count, with_padding=False)
        assert [region_size(layout.tiles[rank]) for rank in range(count)] == [len(part) for part in expected]


def test_axes_nest_from_left_to_right_and_strided_shards_from_right_to_left() -> None:
    nested = Layout((2, 2), (0, 1, 2, 3), ("S0", "S0"), (8,))
    assert [nested.tiles[rank][0] for rank in range(4)] == [((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),)]
    # FSDP over tensor parallelism: split by the second axis first.
    strided = Layout((2, 2), (0, 1, 2, 3), ("S0x2", "S0"), (8,))
    assert [strided.tiles[rank][0] for rank in range(4)] == [((0, 2),), ((4, 6),), ((2, 4),), ((6, 8),)]
    alone = Layout((2,), (0, 1), ("S0x2",), (8,))
    assert alone.tiles[0][0] == ((0, 2), (4, 6))


def test_tiles_are_a_partition() -> None:
    rng = random.Random(1)
    for _ in range(300):
        layout = drawn_layout(rng, 8, drawn_shape(rng))
        seen = torch.zeros(layout.shape, dtype=torch.int64)
        different = {tile: rank for rank, tile in layout.tiles.items()}
        for rank in different.values():
            mark = torch.arange(seen.numel()).view(layout.shape)
            seen.view(-1).index_add_(
                0, tiles(layout, mark)[rank].reshape(-1), torch.ones(region_size(layout.tiles[rank]), dtype=torch.int64)
            )
        assert (seen == 1).all(), layout


def test_a_mesh_that_does_not_ascend_follows_the_process_group() -> None:
    """distribute_tensor and full_tensor lay data by group, whose ranks ascend; compute_local_shape_and_global_offset
    answers by mesh. With uneven shards, or where groups give two ranks one place, torch itself loses data: mesh order.
    """
    even = Layout((4,), (3, 2, 1, 0), ("S0",), (8,))
    assert [even.tiles[rank][0] for rank in range(4)] == [((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),)]
    uneven = Layout((4,), (3, 2, 1, 0), ("S0",), (7,))
    assert (uneven.tiles[3][0], uneven.tiles[0][0]) == (((0, 2),), ((6, 7),))
    crossed = Layout((2, 2), (0, 3, 2, 1), ("S0", "S0"), (8,))
    assert [crossed.tiles[rank][0] for rank in (0, 3, 2, 1)] == [((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),)]
    rows = Layout((2, 2), (2, 3, 0, 1), ("S0", "S1"), (4, 4))  # lines descend along one axis only
    assert rows.tiles[0] == (((0, 2),), ((0, 2),))


def test_cut_is_a_partition_of_about_equal_parts() -> None:
    region = (((0, 3), (6, 11)), ((2, 4),))
    parts = cut(region, 3)
    assert [region_shape(part) for part in parts] == [(3, 2), (3, 2), (2, 2)]
    assert sum(map(region_size, parts)) == region_size(region)
    assert cut((), 4) == [()]


def test_pieces_are_small_whatever_their_shape() -> None:
    source, destination = (Layout((2,), ranks, ("S0",), (32,) * 5) for ranks in ((0, 1), (2, 3)))
    tasks, _ = unit_tasks(source, destination, 4, most_bytes=87_381)
    assert max(task.size_bytes for task in tasks) <= 87_381
    assert sum(task.size_bytes for task in tasks) == 4 * 32**5


def test_what_is_more_than_partial_is_refused() -> None:
    assert _word(Partial("sum"), 2) == "P:sum"
    with pytest.raises(ValueError, match="not known"):
        _word(_MaskPartial(offset_shape=None, offset_dim=0), 2)


def test_one_stretch_is_what_torch_calls_contiguous() -> None:
    rng = random.Random(2)
    seen = {True: 0, False: 0}
    for _ in range(300):
        shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 3)))
        tile = tuple(((0, size),) for size in shape)
        bounds = [sorted(rng.sample(range(size + 1), 2)) for size in shape]
        region = tuple(((low, high),) for low, high in bounds)
        view = torch.zeros(shape)[tuple(slice(low, high) for low, high in bounds)]
        assert in_one_stretch(region, tile) == view.is_contiguous()
        seen[view.is_contiguous()] += 1
    assert min(seen.values()) > 30
    assert not in_one_stretch((((0, 1), (2, 3)),), (((0, 4),),))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (((2,), (0, 1, 2), ("R",), (4,)), "2 places"),
        (((2,), (0, 0), ("R",), (4,)), "2 places"),
        (((2,), (0, 1), ("R", "R"), (4,)), "give one for each"),
        (((2,), (0, 1), ("S1",), (4,)), "has not"),
        (((2,), (0, 1), ("Q",), (4,)), "not known"),
        (((2,), (0, 1), ("P:norm",), (4,)), "not known"),
        (((2, 2), (0, 1, 2, 3), ("P", "P:max"), (4,)), "two ways"),
        (((0,), (), ("R",), (4,)), "at least one rank"),
    ],
)
def test_mistakes_are_named(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...], tuple[int, ...]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Layout(*layout)
