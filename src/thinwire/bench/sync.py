"""Workload `sync`: a model's weights from a trainer of 2x2 ranks to a server of 1x2, one host per row.

naive                    all tiles to one rank, then the full tensors to every rank of the server, which cuts its tile
reshard                  by the plan, uncompressed
bfloat16 | uniform:8     by the plan, compressed
difference:uniform:8     by the plan, only the change since the last call, compressed
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from thinwire import crossmesh
from thinwire.bench import columns
from thinwire.bench.case import Case
from thinwire.codecs import seed_from
from thinwire.crossmesh.layout import region_shape
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import codec_of
from thinwire.crossmesh.profiling import profile
from thinwire.crossmesh.state_dict import DIFFERENCE
from thinwire.crossmesh.tensors import as_dtensor, layout_of
from thinwire.links import Door

NAIVE, RESHARD = "naive", "reshard"
SETTINGS = {"layers": 12, "width": 768, "vocabulary": 32_768}
TRAINER, SERVER = ((0, 1), (2, 3)), ((4, 5),)
HOSTS, RANKS_PER_HOST = 3, 2
CHANGE = 1e-3
PROBES = 16
COLUMNS = (
    columns.SECONDS,
    columns.FROM_TO,
    columns.RATIO,
    columns.MB_SENT,
    columns.PREDICTED,
    columns.Column("least MB", lambda row: f"{row.figure('least_bytes') / 1e6:,.2f}"),
    columns.figure("error", "error", ".1e"),
)
CAPTION = "median of {} interleaved runs; MB that went from host to host, and the least that could"


def check(methods: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    for method in methods:
        if method not in (NAIVE, RESHARD):
            codec_of(method.removeprefix(DIFFERENCE))
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise ValueError(f"settings.{unknown[0]} is not known to sync; known are {', '.join(SETTINGS)}")


def set_up(case: Case, folder: Path) -> None:
    if (case.hosts, case.ranks_per_host) != (HOSTS, RANKS_PER_HOST):
        raise ValueError(f"sync goes from 2x2 to 1x2 ranks: give hosts = {HOSTS}, ranks_per_host = {RANKS_PER_HOST}")


class Weights:
    """This rank's tiles of a GPT's weights. Values depend on the tensor, the tile and the turn."""

    def __init__(self, door: Door, case: Case) -> None:
        self.door = door
        self.network: Network = profile(door)
        self.trainer, self.server = (
            DeviceMesh("cpu", list(map(list, TRAINER))),
            DeviceMesh("cpu", list(map(list, SERVER))),
        )
        self.shapes = _shapes(**{name: int(case.settings.get(name, usual)) for name, usual in SETTINGS.items()})
        self.syncs: dict[str, crossmesh.StateSync] = {}
        self.states = [
            {name: self._tile(name, number, turn) for number, name in enumerate(self.shapes)} for turn in range(2)
        ]
        for method in case.methods:
            if method != NAIVE:
                self.syncs[method] = crossmesh.StateSync(
                    self.server,
                    served,
                    codec="" if method == RESHARD else method,
                    cost=self.network,
                    door=door,
                )

    def _tile(self, name: str, number: int, turn: int) -> DTensor:
        layout = layout_of(self.trainer, trained(name), self.shapes[name])
        tile = layout.tiles.get(self.door.rank)
        shape = (0,) if tile is None else region_shape(tile)
        # The seed depends on the tile and not on the rank, so that replicas are equal.
        begin = [ranges[0][0] for ranges in tile or ()]
        generator = torch.Generator().manual_seed(seed_from(number, *begin))
        local = torch.randn(shape, generator=generator)
        if turn:
            local += CHANGE * torch.randn(shape, generator=generator)
        return as_dtensor(local, self.trainer, trained(name), self.shapes[name])

    def at(self, turn: int) -> dict[str, DTensor]:
        """The weights of a turn. They alternate between two states that differ a little, as after a training step."""
        return self.states[turn % 2]


def _shapes(*, layers: int, width: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding": (vocabulary, width)}
    for layer in range(layers):
        shapes |= {
            f"{layer}.qkv": (3 * width, width),
            f"{layer}.out": (width, width),
            f"{layer}.up": (4 * width, width),
            f"{layer}.down": (width, 4 * width),
            f"{layer}.norm": (width,),
        }
    return shapes


def trained(name: str) -> list[Placement]:
    """A weight's placements on the trainer: sharded over both axes, data parallel, then tensor parallel."""
    return [Shard(0), Replicate()] if name.endswith("norm") else [Shard(0), Shard(1)]


def served(name: str) -> list[Placement]:
    return [Replicate(), Replicate()] if name.endswith("norm") else [Replicate(), Shard(0)]


def prepare(door: Door, case: Case, folder: Path) -> Weights:
    return Weights(door, case)


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, weights: Weights, case: Case, seed: int) -> dict[str, Any]:
    hosts = weights.network.host_of
    predicted = 0.0
    if method == NAIVE:
        out = _naive(weights, weights.at(seed))
        least = 4 * sum(torch.Size(shape).numel() for shape in weights.shapes.values())
    else:
        sync = weights.syncs[method]
        out = sync.send(weights.at(seed))
        assert sync.plan is not None
        least, predicted = sync.plan.least_host_bytes, sync.plan.predicted_s
    away = sum(size for peer, size in door.books.bytes_to().items() if hosts[peer] != hosts[door.rank])
    total = int(door.gather(away, channel="harness").sum())
    return {"wire_bytes": total, "least_bytes": least, "predicted_s": predicted, "values": _probes(door, out)}


def _probes(door: Door, out: Mapping[str, DTensor]) -> list[float]:
    """Some values of each tensor that arrived, from every rank. Methods are compared by them."""
    probes = []
    for x in out.values():
        flat = x._local_tensor.reshape(-1)
        probes.append(flat[:: max(1, len(flat) // PROBES)][:PROBES] if len(flat) else torch.zeros(PROBES))
    gathered = door.gather(
        torch.cat([torch.nn.functional.pad(part, (0, PROBES - len(part))) for part in probes]), channel="harness"
    )
    return [float(value) for value in gathered.flatten()]


def _naive(weights: Weights, state: Mapping[str, DTensor]) -> dict[str, DTensor]:
    single, all_ranks = DeviceMesh("cpu", [0], _init_backend=False), [Replicate(), Replicate()]
    options: dict[str, Any] = {"cost": weights.network, "door": weights.door}
    gathered = crossmesh.reshard_state_dict(state, single, [Replicate()], **options)
    copies = crossmesh.reshard_state_dict(gathered, weights.server, all_ranks, **options)
    state_out = {}
    for name, x in copies.items():
        local = x._local_tensor
        if weights.door.rank in SERVER[0] and not name.endswith("norm"):
            local = local.chunk(len(SERVER[0]))[SERVER[0].index(weights.door.rank)].clone()
        state_out[name] = as_dtensor(local, weights.server, served(name), weights.shapes[name])
    return state_out


def summary(case: Case, method: str, by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """`error` is the largest difference of a value from the first method's. Weights have a size of about 1."""
    last, first = by_method[method][-1], by_method[case.methods[0]][-1]
    errors = [abs(a - b) for a, b in zip(last["values"], first["values"], strict=True)]
    figures = {
        "wire_bytes": int(statistics.median(line["wire_bytes"] for line in by_method[method])),
        "least_bytes": last["least_bytes"],
        "error": max(errors),
    }
    return figures | ({"predicted_s": last["predicted_s"]} if last["predicted_s"] else {})
