"""Tensors from one mesh to another: who sends which piece to whom, by which strategy, in which order. Pure.

Layouts and a network in, a plan out: routes in one order that all ranks keep to, the time predicted, and a bound that
no plan of these pieces beats. Never touches torch.distributed.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

from thinwire.codecs import Bucketed, Codec, Uniform
from thinwire.codecs.spec import parse_codec
from thinwire.crossmesh.balance import Shipment, balance, bound_s
from thinwire.crossmesh.broadcast import ALLGATHER, BROADCAST, STRATEGIES, Branch, Haul
from thinwire.crossmesh.layout import Layout, Region, region_size
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.tasks import STRIDED_BYTES, Reduction, Task, unit_tasks

AUTO = "auto"
# At most so many routes through a host's way in or out at a time: the next one's start hides behind the last one's end,
# and more streams at one link share it badly.
DEPTH = 2
# Pieces are cut to this, so that buffers stay small whatever the tensor is.
PIECE_BYTES = 1 << 25
# About so many ranks share a host.
SHARES = 4
# Values that share a range in a codec of so many bits.
BUCKET = 2048
# Ties go to what moves fewer bytes inside hosts, then to fewer messages.
ORDER = (BROADCAST, *(name for name in STRATEGIES if name != BROADCAST))


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to move. `codec` '' moves its bytes as they are."""

    name: str
    source: Layout
    destination: Layout
    itemsize: int
    codec: str = ""

    def wire_bytes(self, region: Region) -> int:
        if not self.codec:
            return region_size(region) * self.itemsize
        return codec_of(self.codec).nbytes((region_size(region),))


@dataclass(frozen=True)
class Gate:
    """`waits` does not begin before `signals` is done with that earlier route."""

    route: int
    signals: int
    waits: int


@dataclass(frozen=True)
class Route:
    """A piece's way, a tree of ranks: `edges` (from, to), the first one from the sender."""

    tensor: int
    region: Region
    size_bytes: int  # on each edge
    edges: tuple[tuple[int, int], ...]
    chunk_bytes: int
    gates: tuple[Gate, ...] = ()

    @property
    def sender(self) -> int:
        return self.edges[0][0]


@dataclass(frozen=True)
class Plan:
    """What every rank obeys. `copies`: (tensor, region, rank) that move nowhere."""

    tensors: tuple[TensorSpec, ...]
    strategy: str
    reductions: tuple[Reduction, ...]
    copies: tuple[tuple[int, Region, int], ...]
    routes: tuple[Route, ...]
    host_of: tuple[int, ...]
    predicted_s: float
    bound_s: float

    @cached_property
    def key(self) -> str:
        """The same for equal plans, wherever they were made."""
        return hashlib.sha256(repr((self.tensors, self.routes, self.reductions)).encode()).hexdigest()[:12]

    @property
    def gap(self) -> float:
        """How far above the bound, relative to it."""
        return self.predicted_s / self.bound_s - 1 if self.bound_s else 0.0

    @property
    def sent_bytes(self) -> int:
        """That leave a rank, inside hosts too; without partial sums."""
        return sum(route.size_bytes * len(route.edges) for route in self.routes)

    @property
    def host_bytes(self) -> int:
        """That cross from host to host."""
        crossing = sum(
            route.size_bytes
            for route in self.routes
            for src, dst in route.edges
            if self.host_of[src] != self.host_of[dst]
        )
        away = sum(
            reduction.size_bytes
            for reduction in self.reductions
            for rank in reduction.ranks
            if self.host_of[rank] != self.host_of[reduction.at]
        )
        return crossing + away

    @property
    def least_host_bytes(self) -> int:
        """Each byte once for every host that needs it and has it not; partial sums come on top."""
        total = 0
        for index, spec in enumerate(self.tensors):
            tasks, _ = unit_tasks(spec.source, spec.destination, spec.itemsize, tensor=index, most_bytes=PIECE_BYTES)
            for task in tasks:
                have = {self.host_of[rank] for rank in task.senders}
                need = {self.host_of[rank] for rank in task.receivers} - have
                total += spec.wire_bytes(task.region) * len(need)
        return total

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"gap": self.gap, "host_bytes": self.host_bytes}


@lru_cache(maxsize=64)
def codec_of(spec: str) -> Codec:
    """Long rows are cut, so that each stretch of values has a range of its own."""
    codec = parse_codec(spec)
    return Bucketed(codec, BUCKET) if isinstance(codec, Uniform) else codec


def plan(
    source: Layout, destination: Layout, *, itemsize: int, network: Network, strategy: str = AUTO, name: str = "x"
) -> Plan:
    """For one tensor."""
    return plan_all((TensorSpec(name, source, destination, itemsize),), network, strategy)


@lru_cache(maxsize=256)
def plan_all(
    tensors: tuple[TensorSpec, ...], network: Network, strategy: str = AUTO, piece_bytes: int = PIECE_BYTES
) -> Plan:
    """For several, balanced together."""
    if strategy != AUTO and strategy not in STRATEGIES:
        raise ValueError(f"strategy {strategy!r} is not known; give {', '.join(STRATEGIES)} or {AUTO}")
    _check_ranks(tensors, network)
    candidates = ORDER if strategy == AUTO else (strategy,)
    pieces = {name: _pieces(tensors, piece_bytes, name) for name in candidates}
    routed = {name: _routed(tensors, tasks, network, name) for name, (tasks, _) in pieces.items()}
    chosen = min(routed, key=lambda name: routed[name][1])
    (tasks, reductions), (routes, nic_s) = pieces[chosen], routed[chosen]
    least_s = bound_s(_ideal_shipments(tensors, tasks, network))
    summing_s = _summing_s(reductions, network)
    return Plan(
        tensors,
        chosen,
        tuple(reductions),
        tuple((task.tensor, task.region, rank) for task in tasks for rank in task.copiers),
        tuple(routes),
        network.host_of,
        summing_s + nic_s,
        least_s,
    )


def _pieces(tensors: Sequence[TensorSpec], piece_bytes: int, strategy: str) -> tuple[list[Task], list[Reduction]]:
    """All tensors' tasks. An all-gather cuts each piece again, for the ranks of a host: it gets larger ones."""
    strided_bytes = STRIDED_BYTES * (SHARES if strategy == ALLGATHER else 1)
    tasks: list[Task] = []
    reductions: list[Reduction] = []
    for index, spec in enumerate(tensors):
        sides = spec.source, spec.destination, spec.itemsize
        own, sums = unit_tasks(*sides, tensor=index, most_bytes=piece_bytes, strided_bytes=strided_bytes)
        tasks += own
        reductions += sums
    return tasks, reductions


def _check_ranks(tensors: Sequence[TensorSpec], network: Network) -> None:
    for spec in tensors:
        for rank in (*spec.source.ranks, *spec.destination.ranks):
            if not 0 <= rank < len(network.host_of):
                raise ValueError(f"{spec.name}: rank {rank} is in a mesh, the network has {len(network.host_of)} ranks")


def _ideal_shipments(tensors: Sequence[TensorSpec], tasks: Sequence[Task], network: Network) -> list[Shipment]:
    """Each piece once into every host that lacks it, at the best rate that leads there; nothing else costs."""
    shipments = []
    for task in tasks:
        have = sorted({network.host_of[rank] for rank in task.senders})
        need = sorted({network.host_of[rank] for rank in task.receivers} - set(have))
        if need:
            size = tensors[task.tensor].wire_bytes(task.region)
            # Into each host at the best rate of all hosts, since others may hand it on; out of each at its own best.
            best = [max(network.rate(src, dst) for src in range(network.num_hosts) if src != dst) for dst in need]
            fastest = max(best)
            seconds = tuple((host, size / max(fastest, *(network.rate(host, dst) for dst in need))) for host in have)
            shipments.append(Shipment(seconds, tuple(need)))
    return shipments


@dataclass(frozen=True)
class _Move:
    """A haul of a task, to be given a sender."""

    task: Task
    haul: Haul
    size_bytes: int
    senders: dict[int, list[int]]  # by host


def _routed(
    tensors: Sequence[TensorSpec], tasks: Sequence[Task], network: Network, strategy: str
) -> tuple[list[Route], float]:
    """Routes by this strategy, and when the last is predicted to end."""
    sending = {network.host_of[rank] for task in tasks for rank in task.senders}
    moves: list[_Move] = []
    inside: list[Route] = []
    local_s: defaultdict[int, float] = defaultdict(float)
    for number, task in enumerate(tasks):
        spec = tensors[task.tensor]
        senders = _by_host(task.senders, network)
        lines = _by_host(task.receivers, network)
        # Who shares a host with a sender is served there, from rank to rank.
        for host in [host for host in lines if host in senders]:
            line = lines.pop(host)
            sender = senders[host][number % len(senders[host])]
            size = spec.wire_bytes(task.region)
            local_s[host] += size * len(line) / network.local_bytes_per_s
            inside.append(
                _route(spec, task, Branch(task.region, (tuple(line),)), sender, chunks=max(1, size // (1 << 20)))
            )
        # Hosts that have to send as well come last in the chain: the last hands nothing on.
        order = sorted(lines, key=lambda host: (host in sending, -min(network.bytes_per_s[host]), host))
        turned = {host: _turned(lines[host], number) for host in order}
        # A coded piece goes whole: every route of it then carries the same bytes, and what receivers have is one thing.
        made = (
            STRATEGIES[BROADCAST if spec.codec and strategy == ALLGATHER else strategy](task.region, turned)
            if turned
            else ()
        )
        for haul in made:
            size = sum(spec.wire_bytes(branch.region) for branch in haul.branches)
            moves.append(_Move(task, haul, size, senders))
    shipments = [
        Shipment(
            tuple((host, move.haul.seconds(move.size_bytes, host, network)) for host in move.senders),
            move.haul.hosts,
        )
        for move in moves
    ]
    order_ = balance(shipments)
    routes: list[Route] = list(inside)
    used: defaultdict[int, int] = defaultdict(int)
    for index in order_.order:
        move, host = moves[index], order_.senders[index]
        for branch in move.haul.branches:
            # Of a host's ranks that could send, the one that has sent least.
            sender = min(move.senders[host], key=lambda rank: (used[rank], rank))
            used[sender] += move.size_bytes
            chunks = move.haul.chunks(move.size_bytes, host, network)
            routes.append(_route(tensors[move.task.tensor], move.task, branch, sender, chunks=chunks))
    return _gated(routes, network), max([order_.makespan_s, *local_s.values()])


def _route(spec: TensorSpec, task: Task, branch: Branch, sender: int, *, chunks: int) -> Route:
    size = spec.wire_bytes(branch.region)
    return Route(task.tensor, branch.region, size, branch.edges(sender), max(1, -(-size // chunks)))


def _gated(routes: Sequence[Route], network: Network) -> list[Route]:
    """Through each host's way in and way out DEPTH routes at a time, in order.

    A gate only ever waits for an earlier route, so no circle of waiting can close.
    """
    through: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    gated = []
    for number, route in enumerate(routes):
        gates = []
        for port, rank in _ports(route, network):
            line = through[port]
            if len(line) >= DEPTH:
                earlier, signals = line[-DEPTH]
                gates.append(Gate(earlier, signals, rank))
            line.append((number, rank))
        gated.append(Route(route.tensor, route.region, route.size_bytes, route.edges, route.chunk_bytes, tuple(gates)))
    return gated


def _ports(route: Route, network: Network) -> list[tuple[tuple[str, int], int]]:
    """The ways in and out of hosts that a route takes, and which rank stands there."""
    found = []
    for index, (src, dst) in enumerate(route.edges):
        if network.host_of[src] != network.host_of[dst]:
            if not index:
                found.append((("out", network.host_of[src]), src))
            found.append((("in", network.host_of[dst]), dst))
    return found


def _summing_s(reductions: Sequence[Reduction], network: Network) -> float:
    """Partial sums go from rank to rank at the same time: as long as the busiest way takes."""
    busy: defaultdict[tuple[str, int], float] = defaultdict(float)
    for reduction in reductions:
        to = network.host_of[reduction.at]
        for rank in reduction.ranks:
            host = network.host_of[rank]
            if host != to:
                seconds = reduction.size_bytes / network.rate(host, to)
                busy["out", host] += seconds
                busy["in", to] += seconds
    return max(busy.values(), default=0.0)


def _by_host(ranks: Sequence[int], network: Network) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        found[network.host_of[rank]].append(rank)
    return dict(found)


def _turned(ranks: Sequence[int], number: int) -> list[int]:
    """Another rank is the first for each piece, so that no rank hands on everything."""
    at = number % len(ranks)
    return [*ranks[at:], *ranks[:at]]
