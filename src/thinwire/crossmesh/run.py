"""Obey a plan: every rank does its part of each route, in the plan's order, a few at a time, through the door.

No plan deadlocks: a rank begins routes in the one order that all share, and whatever a route waits for comes before it.
Buffers are bounded: a rank has at most WORKERS pieces in hand. The source is only read.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from thinwire.codecs import seed_from
from thinwire.crossmesh.layout import Region, region_shape, region_size
from thinwire.crossmesh.plan import Gate, Plan, Route, codec_of
from thinwire.crossmesh.regions import pack, place, unpack
from thinwire.crossmesh.tasks import Reduction
from thinwire.links import Door, Transfer

WORKERS = 3
COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class Handle:
    """Tensors on their way. The source must not change before `wait` has returned."""

    def __init__(
        self, door: Door, channel: str, parts: Sequence[Future[None]], finish: Callable[[], dict[int, Tensor]]
    ):
        self._door, self._channel, self._parts, self._finish = door, channel, parts, finish
        self.seconds = 0.0

    def wait(self) -> dict[int, Tensor]:
        """This rank's tiles, by the tensor's place in the plan; those it has none of are left out."""
        start = time.perf_counter()
        try:
            for part in self._parts:
                part.result()
        finally:
            self._door.books.waited(self._channel, time.perf_counter() - start)
        return self._finish()


class Single:
    """One tensor on its way."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def wait(self) -> Tensor | None:
        """This rank's tile; None for a rank outside the destination."""
        return self._handle.wait().get(0)


def start(plan: Plan, local: Tensor | None, door: Door, *, name: str = "", dtype: torch.dtype | None = None) -> Single:
    """A plan of one tensor. `local` is this rank's source tile; a rank without one names the dtype."""
    dtypes = [local.dtype if local is not None else dtype]
    return Single(start_all(plan, {} if local is None else {0: local}, door, name=name, dtypes=dtypes))


def start_all(
    plan: Plan,
    sources: Mapping[int, Tensor],
    door: Door,
    *,
    dtypes: Sequence[torch.dtype | None],
    name: str = "",
    seed: int = 0,
    device: torch.device | None = None,
    known: MutableMapping[int, Tensor] | None = None,
    held: MutableMapping[int, Tensor] | None = None,
) -> Handle:
    """`sources`: this rank's tiles, by the tensor's place in the plan. Every rank of the plan calls this.

    For a tensor in `known` the difference to it is sent, and it becomes what receivers have: its source tiles' side.
    `held` is the receivers' side, their tiles as they are.
    """
    _check(plan, sources, dtypes, door.rank)
    channel = f"reshard {name or plan.tensors[0].name}"
    work = _Work(plan, sources, door, dtypes, channel, seed, device, known or {}, held or {})
    roles = work.roles()
    if not roles:
        return Handle(door, work.channel, [], work.finish)
    pool = ThreadPoolExecutor(min(WORKERS, len(roles)), thread_name_prefix="thinwire-reshard")
    parts = [pool.submit(role) for role in roles]
    pool.shutdown(wait=False)
    return Handle(door, work.channel, parts, work.finish)


def _check(plan: Plan, sources: Mapping[int, Tensor], dtypes: Sequence[torch.dtype | None], rank: int) -> None:
    for index, spec in enumerate(plan.tensors):
        tile = spec.source.tiles.get(rank)
        if (tile is None) != (index not in sources):
            what = "is not in its source mesh" if tile is None else "holds a tile of it"
            raise ValueError(f"{spec.name}: rank {rank} {what}; give a source tensor just where the plan has one")
        if tile is not None and tuple(sources[index].shape) != region_shape(tile):
            raise ValueError(
                f"{spec.name}: rank {rank} gives a tensor of shape {tuple(sources[index].shape)}, its tile in "
                f"{spec.source} of {spec.source.shape} has {region_shape(tile)}; was the plan made for another tensor?"
            )
        dtype = dtypes[index]
        if dtype is None and rank in spec.destination.ranks:
            raise ValueError(f"{spec.name}: rank {rank} has no source tensor to tell the dtype by; give dtype=")
        if dtype is not None and dtype.itemsize != spec.itemsize:
            raise ValueError(f"{spec.name} is {dtype}, the plan was made for {spec.itemsize} bytes a value; plan again")


class _Work:
    """One rank's part of one call."""

    def __init__(
        self,
        plan: Plan,
        sources: Mapping[int, Tensor],
        door: Door,
        dtypes: Sequence[torch.dtype | None],
        channel: str,
        seed: int,
        device: torch.device | None,
        known: MutableMapping[int, Tensor],
        held: MutableMapping[int, Tensor],
    ) -> None:
        self.known, self.held = known, held
        self.plan, self.door, self.channel, self.seed = plan, door, channel, seed
        self.me = door.rank
        # Calls are told apart by what all ranks of the plan know: which plan, and the how-manieth time.
        self.call = f"{plan.key}/{door.turn(f'{channel}/{plan.key}')}"
        self.sources = {index: local.detach() for index, local in sources.items()}
        self.outs: dict[int, Tensor] = {}
        where = device or next((local.device for local in sources.values()), None)
        for index, spec in enumerate(plan.tensors):
            tile = spec.destination.tiles.get(self.me)
            if tile is not None:
                self.outs[index] = torch.empty(region_shape(tile), dtype=dtypes[index], device=where)
        self.summed: dict[int, Tensor] = {}
        self.sums_done: list[threading.Event] = []
        self.done: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.signals: defaultdict[int, list[tuple[int, Gate]]] = defaultdict(list)  # to give, by route
        self.given: list[Transfer[Tensor]] = []

    def roles(self) -> list[Callable[[], None]]:
        """In the plan's order."""
        roles: list[Callable[[], None]] = []
        for number, reduction in enumerate(self.plan.reductions):
            if self.me == reduction.at:
                self.summed.setdefault(reduction.tensor, torch.empty_like(self.sources[reduction.tensor]))
                over = threading.Event()
                self.sums_done.append(over)
                roles.append(_bound(self._add_up, number, reduction, over))
            elif self.me in reduction.ranks:
                roles.append(_bound(self._contribute, number, reduction))
        for number, route in enumerate(self.plan.routes):
            for gate in route.gates:
                if gate.signals == self.me:
                    self.signals[gate.route].append((number, gate))
            if any(self.me in edge for edge in route.edges):
                roles.append(_bound(self._move, number, route))
        copies = [(tensor, region) for tensor, region, rank in self.plan.copies if rank == self.me]
        if copies:
            roles.append(_bound(self._copy, copies))
        return roles

    def finish(self) -> dict[int, Tensor]:
        for transfer in self.given:
            transfer.wait(behind=True)
        return self.outs

    def _relay(self, data: Tensor, source: int | None, heirs: Sequence[int], key: str, chunk: int) -> Transfer[Tensor]:
        return self.door.relay(
            data, source, heirs, channel=self.channel, key=f"{self.call}/{key}", chunk_bytes=max(1, chunk)
        )

    def _contribute(self, number: int, reduction: Reduction) -> None:
        flat = self._packed(self.sources, reduction.tensor, reduction.region)
        self._relay(flat, None, [reduction.at], f"sum{number}", flat.nbytes).wait(behind=True)

    def _add_up(self, number: int, reduction: Reduction, over: threading.Event) -> None:
        try:
            own = self._packed(self.sources, reduction.tensor, reduction.region)
            others = {rank: torch.empty_like(own) for rank in reduction.ranks if rank != self.me}
            arriving = [self._relay(data, rank, [], f"sum{number}", data.nbytes) for rank, data in others.items()]
            for transfer in arriving:
                transfer.wait(behind=True)
            layout = self.plan.tensors[reduction.tensor].source
            how = layout.reduction(layout.partial_axes[0])
            # In the order of ranks, whoever adds up: the same sum wherever it is made.
            parts = [own if rank == self.me else others[rank] for rank in reduction.ranks]
            total = parts[0]
            for part in parts[1:]:
                total = COMBINE[how](total, part)
            if how == "avg":
                total = total / len(parts)
            unpack(total, self.summed[reduction.tensor], layout.tiles[self.me], reduction.region)
        finally:
            over.set()

    def _packed(self, held: Mapping[int, Tensor], tensor: int, region: Region) -> Tensor:
        return pack(held[tensor], self.plan.tensors[tensor].source.tiles[self.me], region)

    def _tiles(self, tensor: int) -> Mapping[int, Tensor]:
        """Where to read a tensor from: its sums, once they are done, if it came in parts."""
        if not self.plan.tensors[tensor].source.partial_axes:
            return self.sources
        for over in self.sums_done:
            over.wait()
        return self.summed

    def _copy(self, copies: Sequence[tuple[int, Region]]) -> None:
        for tensor, region in copies:
            flat = self._packed(self._tiles(tensor), tensor, region)
            unpack(flat, self.outs[tensor], self.plan.tensors[tensor].destination.tiles[self.me], region)

    def _move(self, number: int, route: Route) -> None:
        try:
            self._pass(number, route)
        finally:
            self.done[number].set()  # also after an error: who waits for it here meets the same one
        for later, gate in self.signals[number]:
            if gate.waits != self.me:
                token = torch.zeros(1, dtype=torch.uint8)
                self.given.append(self._relay(token, None, [gate.waits], f"{number}>{later}", 1))

    def _pass(self, number: int, route: Route) -> None:
        for gate in route.gates:
            if gate.waits == self.me:
                self._await(number, gate)
        source = next((src for src, dst in route.edges if dst == self.me), None)
        heirs = [dst for src, dst in route.edges if src == self.me]
        key = str(number)
        spec = self.plan.tensors[route.tensor]
        seed = seed_from(self.seed, number)
        if source is not None:
            self._take(route, source, heirs, key, seed)
            return
        flat = self._packed(self._tiles(route.tensor), route.tensor, route.region)
        data = self._encoded(route, flat, seed) if spec.codec else flat
        self._relay(data, None, heirs, key, route.chunk_bytes).wait(behind=True)

    def _encoded(self, route: Route, flat: Tensor, seed: int) -> Tensor:
        """By the codec, and as a difference where receivers are known to have something."""
        spec, values = self.plan.tensors[route.tensor], flat.float()
        codec, known, tile = codec_of(spec.codec), self.known.get(route.tensor), spec.source.tiles[self.me]
        if known is None:
            return codec.encode(values, seed=seed)
        before = pack(known, tile, route.region)
        data = codec.encode(values - before, seed=seed)
        codec.add(data, before, seed=seed)  # what receivers will have
        unpack(before, known, tile, route.region)
        return data

    def _take(self, route: Route, source: int, heirs: Sequence[int], key: str, seed: int) -> None:
        spec, out = self.plan.tensors[route.tensor], self.outs[route.tensor]
        tile = spec.destination.tiles[self.me]
        size = region_size(route.region)
        there = None if spec.codec else place(out, tile, route.region)
        if there is not None:
            self._relay(there, source, heirs, key, route.chunk_bytes).wait(behind=True)
        elif not spec.codec:
            flat = torch.empty(size, dtype=out.dtype, device=out.device)
            self._relay(flat, source, heirs, key, route.chunk_bytes).wait(behind=True)
            unpack(flat, out, tile, route.region)
        else:
            data = torch.empty(route.size_bytes, dtype=torch.uint8, device=out.device)
            self._relay(data, source, heirs, key, route.chunk_bytes).wait(behind=True)
            flat = torch.zeros(size, device=out.device)
            if route.tensor in self.held:
                flat = pack(self.held[route.tensor], tile, route.region).clone()
            codec_of(spec.codec).add(data, flat, seed=seed)
            unpack(flat.to(out.dtype), out, tile, route.region)
            if route.tensor in self.held:
                unpack(flat, self.held[route.tensor], tile, route.region)

    def _await(self, number: int, gate: Gate) -> None:
        if gate.signals == self.me:
            self.done[gate.route].wait()
        else:
            token = torch.empty(1, dtype=torch.uint8)
            self._relay(token, gate.signals, [], f"{gate.route}>{number}", 1).wait(behind=True)


def _bound(work: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: work(*arguments)
