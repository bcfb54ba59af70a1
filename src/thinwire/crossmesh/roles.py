"""One rank's part in one reshard: its role in every sum and route of the plan, in the plan's order."""

import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from thinwire.codecs import seed_from
from thinwire.crossmesh.layout import Region, region_shape, region_size
from thinwire.crossmesh.planning import Gate, Plan, Route, codec_of
from thinwire.crossmesh.regions import pack, unpack, view_of
from thinwire.crossmesh.tasks import Reduction
from thinwire.links import Door, Transfer

COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class Roles:
    """`known` and `held` are for differences: the values that receivers have, as stored by senders and by receivers."""

    def __init__(
        self,
        plan: Plan,
        sources: Mapping[int, Tensor],
        door: Door,
        *,
        dtypes: Sequence[torch.dtype | None],
        channels: Sequence[str],
        key: str,
        repeat: int,
        seed: int,
        device: torch.device | None,
        known: MutableMapping[int, Tensor],
        held: MutableMapping[int, Tensor],
    ) -> None:
        self.plan, self.door, self.seed = plan, door, seed
        self.me, self.channels, self.key, self.repeat = door.rank, channels, key, repeat
        self.known, self.held = known, held
        self.sources = {index: local.detach() for index, local in sources.items()}
        self.outs: dict[int, Tensor] = {}
        where = device or next((local.device for local in sources.values()), None)
        for index, spec in enumerate(plan.tensors):
            tile = spec.destination.tiles.get(self.me)
            if tile is not None:
                self.outs[index] = torch.empty(region_shape(tile), dtype=dtypes[index], device=where)
        self._error: BaseException | None = None
        self._summed: dict[int, Tensor] = {}
        self._sums_done: list[threading.Event] = []
        self._done: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self._signals: defaultdict[int, list[tuple[int, Gate]]] = defaultdict(list)  # to send, by route
        self._sent_signals: list[Transfer[Tensor]] = []
        self._lock = threading.Lock()
        self._coded: dict[tuple[int, Region], Tensor] = {}  # encoded pieces that this rank sends on several routes
        self._left: Counter[tuple[int, Region]] = Counter()  # routes of the piece not sent yet
        # Sums, routes and gates are numbered one after the other, so that no two of a call share a tag.
        self._first_route = len(plan.reductions)
        self._first_gate = [
            self._first_route + len(plan.routes) + before
            for before in accumulate((len(route.gates) for route in plan.routes), initial=0)
        ]

    def all(self) -> list[Callable[[], None]]:
        """This rank's roles, in the plan's order. After an error, roles that have not begun raise it too."""
        roles: list[Callable[[], None]] = []
        for number, reduction in enumerate(self.plan.reductions):
            if self.me == reduction.at:
                self._summed.setdefault(reduction.tensor, torch.empty_like(self.sources[reduction.tensor]))
                done = threading.Event()
                self._sums_done.append(done)
                roles.append(partial(self._add_up, number, reduction, done))
            elif self.me in reduction.ranks:
                roles.append(partial(self._contribute, number, reduction))
        for number, route in enumerate(self.plan.routes):
            for gate in route.gates:
                if gate.signals == self.me:
                    self._signals[gate.route].append((number, gate))
            if any(self.me in edge for edge in route.edges):
                roles.append(partial(self._move, number, route))
                self._left[route.tensor, route.region] += route.sender == self.me
        copies = [(tensor, region) for tensor, region, rank in self.plan.copies if rank == self.me]
        if copies:
            roles.append(partial(self._copy, copies))
        return [partial(self._guarded, role) for role in roles]

    def finish(self) -> dict[int, Tensor]:
        for transfer in self._sent_signals:
            transfer.wait(behind=True)
        return self.outs

    def _guarded(self, role: Callable[[], None]) -> None:
        self._raise()
        try:
            role()
        except BaseException as error:
            self._error = self._error or error
            raise

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _relay(
        self, tensor: int, data: Tensor, source: int | None, heirs: Sequence[int], number: int, chunk_bytes: int
    ) -> Transfer[Tensor]:
        return self.door.relay(
            data,
            source,
            heirs,
            channel=self.channels[tensor],
            key=self.key,
            repeat=self.repeat,
            number=number,
            chunk_bytes=max(1, chunk_bytes),
        )

    def _contribute(self, number: int, reduction: Reduction) -> None:
        flat = self._packed(self.sources, reduction.tensor, reduction.region)
        self._relay(reduction.tensor, flat, None, [reduction.at], number, flat.nbytes).wait(behind=True)

    def _add_up(self, number: int, reduction: Reduction, done: threading.Event) -> None:
        try:
            layout = self.plan.tensors[reduction.tensor].source
            how = layout.reduction(layout.partial_axes[0])
            # Added in the order of ranks, so that the sum is the same whichever rank computes it.
            parts = self._parts(number, reduction)
            total = next(parts).clone()
            for part in parts:
                COMBINE[how](total, part, out=total)
                del part  # free it before the next is posted
            if how == "avg":
                total = (total / len(reduction.ranks)).to(total.dtype)
            unpack(total, self._summed[reduction.tensor], layout.tiles[self.me], reduction.region)
        except BaseException as error:
            self._error = self._error or error  # set before any role goes on with an unfinished sum
            raise
        finally:
            done.set()

    def _parts(self, number: int, reduction: Reduction) -> Iterator[Tensor]:
        """The parts of a sum, in the order of ranks. While one is added, only the next one arrives."""
        own_part = self._packed(self.sources, reduction.tensor, reduction.region)

        def post(rank: int) -> Callable[[], Tensor]:
            if rank == self.me:
                return lambda: own_part
            into = torch.empty_like(own_part)
            relay = self._relay(reduction.tensor, into, rank, [], number, into.nbytes)
            return partial(relay.wait, behind=True)

        arriving = post(reduction.ranks[0])
        for rank in reduction.ranks[1:]:
            upcoming = post(rank)
            yield arriving()
            arriving = upcoming
        yield arriving()

    def _packed(self, held: Mapping[int, Tensor], tensor: int, region: Region) -> Tensor:
        return pack(held[tensor], self.plan.tensors[tensor].source.tiles[self.me], region)

    def _tiles(self, tensor: int) -> Mapping[int, Tensor]:
        """The tiles to read a tensor from. For a partial tensor these are its sums: waits until they are done."""
        if not self.plan.tensors[tensor].source.partial_axes:
            return self.sources
        for done in self._sums_done:
            done.wait()
        self._raise()
        return self._summed

    def _copy(self, copies: Sequence[tuple[int, Region]]) -> None:
        for tensor, region in copies:
            flat = self._packed(self._tiles(tensor), tensor, region)
            unpack(flat, self.outs[tensor], self.plan.tensors[tensor].destination.tiles[self.me], region)

    def _move(self, number: int, route: Route) -> None:
        try:
            self.take_part(number, route)
        finally:
            self._done[number].set()  # also after an error: roles that wait for it then raise the same error
        for later, gate in self._signals[number]:
            if gate.waits != self.me:
                token = torch.zeros(1, dtype=torch.uint8)
                self._sent_signals.append(
                    self._relay(route.tensor, token, None, [gate.waits], self._tag(later, gate), 1)
                )

    def take_part(self, number: int, route: Route) -> None:
        for gate in route.gates:
            if gate.waits == self.me:
                self._await(number, route, gate)
        source = next((src for src, dst in route.edges if dst == self.me), None)
        heirs = [dst for src, dst in route.edges if src == self.me]
        if source is not None:
            self._take(number, route, source, heirs)
            return
        coded = self.plan.tensors[route.tensor].codec
        data = self._encoded(route) if coded else self._packed(self._tiles(route.tensor), route.tensor, route.region)
        self._relay(route.tensor, data, None, heirs, self._first_route + number, route.chunk_bytes).wait(behind=True)

    def _encoded(self, route: Route) -> Tensor:
        """The piece encoded, once for all its routes. A difference is to what receivers had before the call."""
        piece = route.tensor, route.region
        with self._lock:
            data = self._coded[piece] if piece in self._coded else self._encode(route)
            self._left[piece] -= 1
            if self._left[piece]:
                self._coded[piece] = data
            else:
                self._coded.pop(piece, None)
        return data

    def _encode(self, route: Route) -> Tensor:
        spec, seed = self.plan.tensors[route.tensor], self._seed(route)
        values = self._packed(self._tiles(route.tensor), route.tensor, route.region).float()
        codec, known, tile = codec_of(spec.codec), self.known.get(route.tensor), spec.source.tiles[self.me]
        if known is None:
            return codec.encode(values, seed=seed)
        before = pack(known, tile, route.region)
        data = codec.encode(values - before, seed=seed)
        codec.add(data, before, seed=seed)  # the values that receivers will have
        unpack(before, known, tile, route.region)
        return data

    def _seed(self, route: Route) -> int:
        """A seed that depends on the piece and not on its route, so that replicas are equal."""
        return seed_from(self.seed, route.tensor, zlib.crc32(repr(route.region).encode()))

    def _take(self, number: int, route: Route, source: int, heirs: Sequence[int]) -> None:
        spec, out = self.plan.tensors[route.tensor], self.outs[route.tensor]
        tile, size = spec.destination.tiles[self.me], region_size(route.region)

        def receive(into: Tensor) -> None:
            relay = self._relay(route.tensor, into, source, heirs, self._first_route + number, route.chunk_bytes)
            relay.wait(behind=True)

        if spec.codec:
            data = torch.empty(route.size_bytes, dtype=torch.uint8, device=out.device)
            receive(data)
            flat = torch.zeros(size, device=out.device)
            if route.tensor in self.held:
                flat = pack(self.held[route.tensor], tile, route.region).clone()
            codec_of(spec.codec).add(data, flat, seed=self._seed(route))
            unpack(flat.to(out.dtype), out, tile, route.region)
            if route.tensor in self.held:
                unpack(flat, self.held[route.tensor], tile, route.region)
        elif (in_place := view_of(out, tile, route.region)) is not None:
            receive(in_place)
        else:
            flat = torch.empty(size, dtype=out.dtype, device=out.device)
            receive(flat)
            unpack(flat, out, tile, route.region)

    def _await(self, number: int, route: Route, gate: Gate) -> None:
        if gate.signals == self.me:
            self._done[gate.route].wait()
            self._raise()
        else:
            token = torch.empty(1, dtype=torch.uint8)
            earlier = self.plan.routes[gate.route].tensor  # the signal comes on its channel
            self._relay(earlier, token, gate.signals, [], self._tag(number, gate), 1).wait(behind=True)

    def _tag(self, number: int, gate: Gate) -> int:
        return self._first_gate[number] + self.plan.routes[number].gates.index(gate)
