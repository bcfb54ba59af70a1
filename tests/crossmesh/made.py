"""Meshes, placements and shapes drawn at random, and a plan carried out on paper."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.crossmesh.layout import Layout, region_shape
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import Plan
from thinwire.crossmesh.regions import pack, unpack

MESHES = [(1,), (2,), (3,), (4,), (1, 2), (2, 2), (2, 3), (4, 2), (2, 1, 2), (2, 2, 2)]


def drawn_layout(rng: random.Random, world_size: int, shape: tuple[int, ...], *, partial: bool = False) -> Layout:
    mesh = rng.choice([mesh for mesh in MESHES if _count(mesh) <= world_size])
    ranks = rng.sample(range(world_size), _count(mesh))
    if rng.random() < 0.6:
        ranks.sort()
    words = ["R", *(f"S{dim}" for dim in range(len(shape)))]
    if shape and rng.random() < 0.2:
        words.append(f"S{rng.randrange(len(shape))}x{rng.choice((2, 3))}")
    if partial and rng.random() < 0.3:
        words.append("P")
    return Layout(mesh, tuple(ranks), tuple(rng.choice(words) for _ in mesh), shape)


def drawn_shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice((0, 1, 2, 3, 5, 7, 8, 12)) if rng.random() < 0.9 else 9 for _ in range(rng.randrange(4)))


def drawn_network(rng: random.Random, world_size: int) -> Network:
    hosts = rng.randint(1, world_size)
    host_of = [*range(hosts), *(rng.randrange(hosts) for _ in range(world_size - hosts))]
    rng.shuffle(host_of)
    if rng.random() < 0.5:
        return Network.even(host_of)
    rates = tuple(tuple(rng.choice((1e7, 5e7, 1e8)) for _ in range(hosts)) for _ in range(hosts))
    return Network(tuple(host_of), rates)


def tiles(layout: Layout, whole: Tensor) -> dict[int, Tensor]:
    """What each rank holds; partial sums are the whole's share, so that they add up to it."""
    locals_by_rank = {}
    for rank, tile in layout.tiles.items():
        local = whole.clone()
        for dim, ranges in enumerate(tile):
            indices = torch.tensor([index for low, high in ranges for index in range(low, high)], dtype=torch.int64)
            local = local.index_select(dim, indices)
        for axis in layout.partial_axes:
            # 2 x the value from the first, 0 from others but the second's minus 1 x: a sum that needs everybody.
            at, count = layout.coordinates[rank][axis], layout.mesh_shape[axis]
            local = local * (1 if count == 1 else 2 if at == 0 else -1 if at == 1 else 0)
        locals_by_rank[rank] = local
    return locals_by_rank


def carried_out(plan: Plan, held: Sequence[dict[int, Tensor]]) -> list[dict[int, Tensor]]:
    """Every rank's tiles after the plan, by tensor. Each route in order, each edge once; nothing else is known."""
    out: list[dict[int, Tensor]] = []
    for spec, held_by_rank in zip(plan.tensors, held, strict=True):
        dtype = next(iter(held_by_rank.values())).dtype
        # What no route fills stays at a value that no tensor has.
        made = {rank: torch.full(region_shape(tile), -77, dtype=dtype) for rank, tile in spec.destination.tiles.items()}
        out.append(made)
    source = [{rank: local.clone() for rank, local in held_by_rank.items()} for held_by_rank in held]
    summed = [{rank: torch.full_like(local, -99) for rank, local in held_by_rank.items()} for held_by_rank in held]
    for reduction in plan.reductions:
        places = plan.tensors[reduction.tensor].source.tiles
        parts = [pack(source[reduction.tensor][rank], places[rank], reduction.region) for rank in reduction.ranks]
        total = sum(parts[1:], parts[0].clone())
        unpack(total, summed[reduction.tensor][reduction.at], places[reduction.at], reduction.region)

    def read(tensor: int) -> dict[int, Tensor]:
        return (summed if plan.tensors[tensor].source.partial_axes else source)[tensor]

    for tensor, region, rank in plan.copies:
        spec = plan.tensors[tensor]
        flat = pack(read(tensor)[rank], spec.source.tiles[rank], region)
        unpack(flat, out[tensor][rank], spec.destination.tiles[rank], region)
    for number, route in enumerate(plan.routes):
        spec = plan.tensors[route.tensor]
        flat = pack(read(route.tensor)[route.sender], spec.source.tiles[route.sender], route.region)
        reached = {route.sender}
        for src, dst in route.edges:
            assert src in reached, f"route {number} is no tree: {route.edges}"
            assert dst not in reached, f"route {number} is no tree: {route.edges}"
            reached.add(dst)
            unpack(flat, out[route.tensor][dst], spec.destination.tiles[dst], route.region)
        assert all(gate.route < number for gate in route.gates)
    return out


def _count(mesh: tuple[int, ...]) -> int:
    total = 1
    for size in mesh:
        total *= size
    return total
