"""Plan a resharding: which rank sends which piece to which, by which strategy, in which order. Pure.

Layouts and a network in, a plan out: routes in one order that all ranks keep, the predicted time, and a lower bound
for all plans of these pieces. Never touches torch.distributed.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

from thinwire.codecs import Bucketed, Budget, Codec, Nearest, Uniform
from thinwire.codecs.spec import parse_codec
from thinwire.crossmesh.balance import Shipment, balance, bound_s
from thinwire.crossmesh.broadcast import ALLGATHER, BROADCAST, STRATEGIES, Branch, Haul
from thinwire.crossmesh.layout import Layout, Region, region_size
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.tasks import STRIDED_BYTES, Reduction, Task, unit_tasks

AUTO = "auto"
# Routes that may enter or leave a host at the same time. With two, the start of one hides behind the end of the other;
# more streams share a link badly.
DEPTH = 2
# Pieces are cut to this size, so that buffers stay small for any tensor.
PIECE_BYTES = 1 << 25
# Ranks on a host, roughly.
SHARES = 4
# Values that share one range in a `Uniform` codec.
BUCKET = 2048
# Of equally fast strategies the first wins, so they are sorted by bytes inside hosts, then by number of messages.
ORDER = (BROADCAST, *(name for name in STRATEGIES if name != BROADCAST))


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to move. With `codec` '' its bytes are sent unchanged."""

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
    """Rank `waits` does not begin its route before rank `signals` has finished `route`, an earlier one."""

    route: int
    signals: int
    waits: int


@dataclass(frozen=True)
class Route:
    """The path of a piece, a tree of ranks: `edges` are (from, to), and the first starts at the sender."""

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
    """The plan that all ranks follow. `copies` are (tensor, region, rank): pieces that a rank copies locally."""

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
        """A hash that is the same for equal plans on all ranks."""
        return hashlib.sha256(repr((self.tensors, self.routes, self.reductions)).encode()).hexdigest()[:12]

    @property
    def gap(self) -> float:
        """How far the predicted time is above the bound, relative to the bound."""
        return self.predicted_s / self.bound_s - 1 if self.bound_s else 0.0

    @property
    def sent_bytes(self) -> int:
        """Bytes that leave ranks, also inside hosts. Partial sums are not counted."""
        return sum(route.size_bytes * len(route.edges) for route in self.routes)

    @property
    def host_bytes(self) -> int:
        """Bytes that cross from host to host, partial sums included."""
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
        """The fewest possible: each byte once to every host that needs it and lacks it. Partial sums come on top."""
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
    """The codec of a spec. Codecs of rows get buckets, so that each stretch of a long row has its own range."""
    codec = parse_codec(spec)
    return Bucketed(codec, BUCKET) if isinstance(codec, Uniform | Nearest | Budget) else codec


def plan(
    source: Layout, destination: Layout, *, itemsize: int, network: Network, strategy: str = AUTO, name: str = "x"
) -> Plan:
    """The plan for one tensor."""
    return plan_all((TensorSpec(name, source, destination, itemsize),), network, strategy)


@lru_cache(maxsize=256)
def plan_all(
    tensors: tuple[TensorSpec, ...], network: Network, strategy: str = AUTO, piece_bytes: int = PIECE_BYTES
) -> Plan:
    """The plan for several tensors, balanced together."""
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
    """All tensors' tasks and reductions. An all-gather cuts pieces again for a host's ranks, so it gets larger ones."""
    strided_bytes = STRIDED_BYTES * (SHARES if strategy == ALLGATHER else 1)
    tasks: list[Task] = []
    reductions: list[Reduction] = []
    for index, spec in enumerate(tensors):
        sides = spec.source, spec.destination, spec.itemsize
        new_tasks, new_reductions = unit_tasks(
            *sides, tensor=index, most_bytes=piece_bytes, strided_bytes=strided_bytes
        )
        tasks += new_tasks
        reductions += new_reductions
    return tasks, reductions


def _check_ranks(tensors: Sequence[TensorSpec], network: Network) -> None:
    for spec in tensors:
        for rank in (*spec.source.ranks, *spec.destination.ranks):
            if not 0 <= rank < len(network.host_of):
                raise ValueError(f"{spec.name}: rank {rank} is in a mesh, the network has {len(network.host_of)} ranks")


def _ideal_shipments(tensors: Sequence[TensorSpec], tasks: Sequence[Task], network: Network) -> list[Shipment]:
    """Shipments for the bound: each piece once into every host that lacks it, at the best rate; the rest is free."""
    shipments = []
    for task in tasks:
        have = sorted({network.host_of[rank] for rank in task.senders})
        need = sorted({network.host_of[rank] for rank in task.receivers} - set(have))
        if need:
            size = tensors[task.tensor].wire_bytes(task.region)
            # Into a host: the best rate from any host, since any may pass it on. Out of a host: its own best rate.
            best = [max(network.rate(src, dst) for src in range(network.num_hosts) if src != dst) for dst in need]
            fastest = max(best)
            seconds = tuple((host, size / max(fastest, *(network.rate(host, dst) for dst in need))) for host in have)
            shipments.append(Shipment(seconds, tuple(need)))
    return shipments


@dataclass(frozen=True)
class _Move:
    """A haul of a task that still needs a sender."""

    task: Task
    haul: Haul
    size_bytes: int
    senders: dict[int, list[int]]  # by host


def _routed(
    tensors: Sequence[TensorSpec], tasks: Sequence[Task], network: Network, strategy: str
) -> tuple[list[Route], float]:
    """Routes by this strategy, and the predicted time at which the last one ends."""
    sending = {network.host_of[rank] for task in tasks for rank in task.senders}
    moves: list[_Move] = []
    inside: list[Route] = []
    local_s: defaultdict[int, float] = defaultdict(float)
    for number, task in enumerate(tasks):
        spec = tensors[task.tensor]
        senders = _by_host(task.senders, network)
        lines = _by_host(task.receivers, network)
        # Receivers on a host that has a sender get the piece there, passed from rank to rank.
        for host in [host for host in lines if host in senders]:
            line = lines.pop(host)
            sender = senders[host][number % len(senders[host])]
            size = spec.wire_bytes(task.region)
            local_s[host] += size * len(line) / network.local_bytes_per_s
            inside.append(
                _route(spec, task, Branch(task.region, (tuple(line),)), sender, chunks=max(1, size // (1 << 20)))
            )
        # Hosts that also have to send come last in the chain: the last one passes nothing on.
        order = sorted(lines, key=lambda host: (host in sending, -min(network.bytes_per_s[host]), host))
        lines_by_host = {host: _turned(lines[host], number) for host in order}
        # An encoded piece is not cut: all its routes then carry the same bytes, and all receivers have the same values.
        hauls = (
            STRATEGIES[BROADCAST if spec.codec and strategy == ALLGATHER else strategy](task.region, lines_by_host)
            if lines_by_host
            else ()
        )
        for haul in hauls:
            size = sum(spec.wire_bytes(branch.region) for branch in haul.branches)
            moves.append(_Move(task, haul, size, senders))
    shipments = [
        Shipment(
            tuple((host, move.haul.seconds(move.size_bytes, host, network)) for host in move.senders),
            move.haul.hosts,
        )
        for move in moves
    ]
    balanced = balance(shipments)
    routes: list[Route] = list(inside)
    used: defaultdict[int, int] = defaultdict(int)
    for index in balanced.order:
        move, host = moves[index], balanced.senders[index]
        for branch in move.haul.branches:
            # Of the host's possible senders, the rank that has sent least so far.
            sender = min(move.senders[host], key=lambda rank: (used[rank], rank))
            used[sender] += move.size_bytes
            chunks = move.haul.chunks(move.size_bytes, host, network)
            routes.append(_route(tensors[move.task.tensor], move.task, branch, sender, chunks=chunks))
    return _gated(routes, network), max([balanced.makespan_s, *local_s.values()])


def _route(spec: TensorSpec, task: Task, branch: Branch, sender: int, *, chunks: int) -> Route:
    size = spec.wire_bytes(branch.region)
    return Route(task.tensor, branch.region, size, branch.edges(sender), max(1, -(-size // chunks)))


def _gated(routes: Sequence[Route], network: Network) -> list[Route]:
    """Add gates, so that at most DEPTH routes enter each host at a time and at most DEPTH leave it, in order.

    A gate only waits for an earlier route, so ranks can't deadlock.
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
    """The hosts that a route leaves ('out') and enters ('in'), each with the rank that does so."""
    ports = []
    for index, (src, dst) in enumerate(route.edges):
        if network.host_of[src] != network.host_of[dst]:
            if not index:
                ports.append((("out", network.host_of[src]), src))
            ports.append((("in", network.host_of[dst]), dst))
    return ports


def _summing_s(reductions: Sequence[Reduction], network: Network) -> float:
    """Predicted time of the partial sums. All are sent at the same time, so it is that of the busiest port."""
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
    ranks_of: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        ranks_of[network.host_of[rank]].append(rank)
    return dict(ranks_of)


def _turned(ranks: Sequence[int], number: int) -> list[int]:
    """Rotate the ranks, so that each piece starts at another one and no rank has to pass on every piece."""
    at = number % len(ranks)
    return [*ranks[at:], *ranks[:at]]
