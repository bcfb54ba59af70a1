"""What ranks run: models of PyG layers, trained on shards; importable, since ranks are processes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, permutations
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from thinwire import graphs
from thinwire.codecs import Identity
from thinwire.fullgraph import Exact, Method, Sylvie, Unsupported, distribute
from thinwire.fullgraph.aggregate import Adjacency
from thinwire.fullgraph.assign import obey
from thinwire.fullgraph.run import train as run_job
from thinwire.fullgraph.wire import Wire
from thinwire.links import Door
from thinwire.links.cost import KINDS, STRAIGHT, CostModel, Link
from thinwire.training.job import Job

EDGE_FEATURES = 3
EXACT = Exact()


More = Literal[
    "weight",  # of edges
    "features",  # of edges
    "sorted",  # in one process, edges by target
    "loops",  # and duplicates among edges
    "dropout",
    "constant",  # features of nodes
    "apart",  # the first rank has all training nodes
    "chain",  # the first and the last part share no edge
    "alone",  # the last part has a component of its own: no marginal rows
]


@dataclass(frozen=True)
class Case:
    """A model on a graph."""

    data: str
    kind: str
    more: tuple[More, ...] = ()
    epochs: int = 20
    method: Method = EXACT
    seed: int = 0
    lr: float = 0.0  # 0: the kind's own
    slow_rank: int = -1  # whose wires the made-up profile says to be ten times slower; -1: no profile

    @property
    def lr_or_own(self) -> float:
        # Sums over neighbours, unlike means, make large steps of small ones; attention's kinks, of roundings that
        # differ from processor to processor, large ones.
        lr_of = {"gin": 0.001, "gine": 0.001, "graph": 1e-5, "gcn-bare": 1e-3, "gat": 0.02, "gine-gru": 0.02}
        return self.lr or lr_of.get(self.kind, 0.1)


class Net(nn.Module):
    """Three layers of one kind, made anew from a seed; edges go along where the layer takes them."""

    def __init__(self, case: Case, widths: list[int]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.convs = nn.ModuleList([layer(case.kind, a, b) for a, b in pairwise(widths)])
        self.dropout = nn.Dropout(0.5 if "dropout" in case.more else 0.0)

    def forward(self, x: Tensor, edge_index: Tensor | None, **along: Tensor) -> Tensor:
        for place, conv in enumerate(self.convs):
            x = conv(x, edge_index, **along)
            if place + 1 < len(self.convs):
                x = self.dropout(torch.relu(x))
        return x


class OwnModel(nn.Module):
    """What a user may come with: attention, batch norms, one layer called twice, jumping knowledge."""

    def __init__(self, case: Case, widths: list[int]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = pyg.GATv2Conv(widths[0], 8, heads=2, edge_dim=EDGE_FEATURES)
        self.again = pyg.SAGEConv(16, 16)
        self.norms = nn.ModuleList([pyg.BatchNorm(16), nn.BatchNorm1d(16)])
        self.jump = pyg.JumpingKnowledge("cat")
        self.out = nn.Linear(48, widths[-1])

    def forward(self, x: Tensor, edge_index: Tensor | None, edge_attr: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.first(x, edge_index, edge_attr)))
        xs = [x]
        for _ in range(2):
            x = torch.relu(self.norms[1](self.again(x, edge_index)))
            xs.append(x)
        out: Tensor = self.out(self.jump(xs))
        return out


def layer(kind: str, a: int, b: int) -> nn.Module:
    mlp = nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))
    made: nn.Module = {
        "sage": lambda: pyg.SAGEConv(a, b),
        "sage-lstm": lambda: pyg.SAGEConv(a, b, aggr="lstm"),
        "gine-gru": lambda: pyg.GINEConv(mlp, edge_dim=EDGE_FEATURES, aggr=pyg.aggr.GRUAggregation(a, a)),
        "sage-max": lambda: pyg.SAGEConv(a, b, aggr="max"),
        "gcn": lambda: pyg.GCNConv(a, b),
        "gcn-improved": lambda: pyg.GCNConv(a, b, improved=True),
        "gcn-bare": lambda: pyg.GCNConv(a, b, normalize=False),
        "gin": lambda: pyg.GINConv(mlp, train_eps=True),
        "gine": lambda: pyg.GINEConv(mlp, edge_dim=EDGE_FEATURES),
        "gin-mean": lambda: pyg.GINConv(mlp, aggr="mean"),
        "gen": lambda: pyg.GENConv(a, b),
        "graph": lambda: pyg.GraphConv(a, b),
        "gat": lambda: pyg.GATConv(a, b),
        "gat-edges": lambda: pyg.GATConv(a, b, edge_dim=EDGE_FEATURES),
        "nn": lambda: pyg.NNConv(a, b, nn.Linear(EDGE_FEATURES, a * b), aggr="mean"),
        "transformer": lambda: pyg.TransformerConv(a, b, edge_dim=EDGE_FEATURES),
    }[kind]()
    return made


def build(case: Case, num_features: int, num_classes: int) -> nn.Module:
    make = OwnModel if case.kind == "own" else Net
    return make(case, [num_features, 16, 24, num_classes])


def train(
    model: nn.Module, x: Tensor, y: Tensor, used: Tensor, num_train: int, edges: dict[str, Tensor], case: Case
) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr_or_own)
    losses = []
    for _ in range(case.epochs):
        optimizer.zero_grad()
        out = model(x, **edges)
        loss = functional.cross_entropy(out[used], y[used], reduction="sum") / num_train
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


class InOne(NamedTuple):
    losses: Tensor
    weights: dict[str, Tensor]
    logits: Tensor  # of each node


@cache
def in_one(case: Case) -> InOne:
    """PyG's own layers on the whole graph."""
    graph = load(case)
    model = build(case, graph.x.shape[1], graph.num_classes)
    edges = {"edge_index": torch.from_numpy(graph.edge_index).long()} | along(case, graph.edge_weight, graph.edge_attr)
    if "sorted" in case.more:  # by target, then by source: layers that read neighbours in turn need it
        order = torch.from_numpy(np.lexsort(graph.edge_index))
        edges = {name: value[..., order] if name == "edge_index" else value[order] for name, value in edges.items()}
    x, y = torch.from_numpy(graph.x).float(), torch.from_numpy(graph.y).long()
    used = torch.from_numpy(graph.split == 0)
    losses = train(model, x, y, used, int(used.sum()), edges, case)
    model.eval()
    with torch.no_grad():
        return InOne(losses, dict(model.state_dict()), model(x, **edges))


@dataclass
class Result:
    """What a rank found."""

    losses: Tensor
    weights: dict[str, Tensor]
    messages: int  # that carried features or activations forward
    bytes_to: dict[str, int]  # by channel
    halo_rows: int
    send_rows: int
    logits: Tensor
    nodes: Tensor  # whose they are
    records: list[dict[str, Any]]  # of bits that were assigned
    central: int  # rows that read no halo
    owned: int


def on_shards(cases: Sequence[Case]) -> list[Result]:
    with Door() as door:
        return [_on_shards(door, case) for case in cases]


def _on_shards(door: Door, case: Case) -> Result:
    shard, graph = shard_of(case, door.rank, door.world_size)
    net, cost = build(case, graph.x.shape[1], graph.num_classes), cost_of(case, door.world_size)
    model = distribute(net, shard, door, case.method, seed=case.seed, cost=cost)
    used = shard.split == 0
    x = shard.x.float()
    edges = {"edge_index": shard.edge_index} | along(case, shard.edge_weight, shard.edge_attr)
    door.books.take()
    losses = train(model, x, shard.y.long(), used, shard.num_train, edges, case)
    books = door.books.take()
    door.all_reduce(losses, channel="losses").wait()
    model.eval()
    with torch.no_grad():
        logits = model(x, **edges)
    return Result(
        losses=losses,
        weights=dict(model.state_dict()),
        messages=sum(book.messages_sent for name, book in books.items() if name.endswith((".forward", ".exact"))),
        bytes_to={name: book.bytes_sent for name, book in books.items()},
        halo_rows=shard.num_halo,
        send_rows=len(shard.send_rows),
        logits=logits,
        nodes=shard.original_ids,
        records=model.distributed.records,  # type: ignore[union-attr, arg-type]
        central=central_rows(shard),
        owned=shard.num_owned,
    )


def central_rows(shard: graphs.Shard) -> int:
    rows = torch.repeat_interleave(torch.arange(shard.num_owned), shard.indptr.diff())
    return shard.num_owned - len(rows[shard.indices >= shard.num_owned].unique())


def cost_of(case: Case, n: int) -> CostModel | None:
    if case.slow_rank < 0:
        return None
    links = {
        (src, dst): Link(src, dst, 0.001, 0.0, 1e6 if case.slow_rank in (src, dst) else 1e7)
        for src, dst in permutations(range(n), 2)
    }
    return CostModel(n, links, dict.fromkeys(KINDS, STRAIGHT))


def jobs(todo: Sequence[Job[Method]]) -> list[list[float]]:
    """One after another; their losses."""
    return [run_job(job)["losses"] for job in todo]


def shard_of(case: Case, rank: int, num_parts: int) -> tuple[graphs.Shard, graphs.Graph]:
    graph = load(case)
    part = np.random.default_rng(1).integers(0, num_parts, graph.num_nodes).astype(np.int32)
    if "chain" in case.more:  # the first and the last part share no edge
        part = np.minimum(np.arange(graph.num_nodes) * num_parts // graph.num_nodes, num_parts - 1).astype(np.int32)
    if "alone" in case.more:  # the last part has a component of its own: no marginal rows
        part = np.where(np.arange(graph.num_nodes) < graph.num_nodes // 2, part % (num_parts - 1), num_parts - 1)
        part = part.astype(np.int32)
    if "apart" in case.more:
        part = np.where(graph.split == graphs.TRAIN, 0, np.arange(graph.num_nodes) % num_parts).astype(np.int32)
    return list(graphs.split(graph, part, num_parts))[rank], graph


def load(case: Case) -> graphs.Graph:
    graph = graphs.load(case.data)
    randomness = np.random.default_rng(2)
    if "loops" in case.more:
        originals = np.arange(0, graph.num_nodes, 3)
        more = np.concatenate((graph.edge_index, graph.edge_index[:, :200], np.stack((originals, originals))), axis=1)
        graph = replace(graph, edge_index=more)
    if "chain" in case.more or "alone" in case.more:
        ends, half = graph.edge_index, graph.num_nodes // 2
        near = abs(ends[0] - ends[1]) < graph.num_nodes // 4
        kept = near if "chain" in case.more else (ends[0] < half) == (ends[1] < half)
        graph = replace(graph, edge_index=ends[:, kept])
    if "constant" in case.more:
        graph = replace(graph, x=np.ones_like(graph.x))
    if "weight" in case.more:
        graph = replace(graph, edge_weight=randomness.uniform(0.5, 2, graph.num_edges).astype(np.float32))
    if "features" in case.more or case.kind == "own":
        values = randomness.normal(size=(graph.num_edges, EDGE_FEATURES)).astype(np.float32)
        graph = replace(graph, edge_attr=values)
    return graph


def along(case: Case, weight: object, features: object) -> dict[str, Tensor]:
    tensors = {}
    if "weight" in case.more and weight is not None:
        tensors["edge_weight"] = torch.as_tensor(weight)
    if ("features" in case.more or case.kind == "own") and features is not None:
        tensors["edge_attr"] = torch.as_tensor(features)
    return tensors


def wire_between_two(door: Door) -> Wire:
    """Two rows each way, in float32, kept."""
    sizes = [2 * (peer != door.rank) for peer in range(2)]
    return Wire(door, "test", sizes, sizes, Identity(), keeps=True)


def stale_rows() -> list[list[float]]:
    """Six epochs over one wire, the fourth synchronous: which epoch's rows came out."""
    with Door() as door:
        wire = wire_between_two(door)
        seen = []
        for epoch, stale in enumerate([False, True, True, False, True, True]):
            wire.post(torch.full((2, 3), float(epoch)), wire.codecs, (0,))
            seen.append(wire.finish(stale=stale).unique().tolist())
    return seen


def rows_at_bits() -> list[list[float]]:
    """Four epochs over one wire whose first row has 0 bits and whose second has 32, the third sending all."""
    with Door() as door:
        wire = wire_between_two(door)
        seen = []
        for epoch, sends_all in enumerate([False, False, True, False]):
            wire.post(torch.full((2, 3), float(epoch)), wire.full_codecs if sends_all else wire.codecs, (0,))
            seen.append(wire.finish(stale=False)[:, 0].tolist())
            obey(wire, torch.tensor([0, 32]), torch.tensor([0, 32]))
    return seen


class Bad(nn.Module):
    """One layer that can't be distributed, or is called as it can't be."""

    def __init__(self, module: nn.Module, changes: str = "") -> None:
        super().__init__()
        self.conv = module
        self.changes = changes

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        along = []
        if self.changes == "edges":
            edge_index = edge_index.clone()
        if self.changes == "weights":
            along = [torch.ones(edge_index.shape[1], requires_grad=True)]
        if self.changes == "rows":
            x = x[1:]
        out: Tensor = self.conv(x, edge_index, *along)
        return out


class Small(pyg.SAGEConv):  # type: ignore[misc]
    """Fails on a real shard only."""

    def __init__(self) -> None:
        super().__init__(12, 4, aggr="max")

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        if isinstance(x, tuple) and len(x[0]) > 6:
            raise IndexError("that is more than six")
        return super().forward(x, edge_index)


class TwoHops(pyg.MessagePassing):  # type: ignore[misc]
    """A user's own layer that says nothing of what it takes."""

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        if isinstance(x, tuple):
            return self.propagate(edge_index, x=x)
        return self.propagate(edge_index, x=self.propagate(edge_index, x=x))


def order_of_events(case: Case) -> list[str]:
    """Of one pass after the first: messages posted and finished, and sums of rows that need nobody else's."""
    happened: list[str] = []

    def noted(of: type, method: str, what: Callable[..., str], *, on_the_way_back: bool = False) -> None:
        original = getattr(of, method)

        def noting(self: Any, *args: Any, **more: Any) -> Any:
            happened.append(what(self))
            returned = original(self, *args, **more)
            if on_the_way_back and returned.requires_grad:
                returned.register_hook(lambda _: happened.append(f"{what(self)} back"))
            return returned

        patched.append((of, method, original))
        setattr(of, method, noting)

    patched: list[tuple[type, str, Any]] = []
    with Door() as door:
        shard, graph = shard_of(case, door.rank, door.world_size)
        model = distribute(build(case, graph.x.shape[1], graph.num_classes), shard, door, case.method)
        x, y = shard.x.float(), shard.y.long()
        noted(Wire, "post", lambda wire: f"post {wire.channel}")
        noted(Wire, "finish", lambda wire: f"finish {wire.channel}")
        noted(Adjacency, "__matmul__", lambda _: "own rows", on_the_way_back=True)
        noted(pyg.GATConv, "propagate", lambda _: "own rows", on_the_way_back=True)
        try:
            for _ in range(2):
                happened.clear()
                functional.cross_entropy(model(x, shard.edge_index), y).backward()
        finally:
            for of, method, original in patched:
                setattr(of, method, original)
    return happened


class Poisoned(Net):
    """After two good epochs, what the first layer tells the second is infinite on one rank."""

    rank, calls = 0, 0

    def forward(self, x: Tensor, edge_index: Tensor | None, **along: Tensor) -> Tensor:
        self.calls += 1
        x = self.convs[0](x, edge_index)
        if self.rank == 1 and self.calls == 3:
            x = x + torch.inf
        out: Tensor = self.convs[2](torch.relu(self.convs[1](x, edge_index)), edge_index)
        return out


def poisoned(case: Case) -> None:
    with Door() as door:
        shard, graph = shard_of(case, door.rank, door.world_size)
        net = Poisoned(case, [graph.x.shape[1], 16, 24, graph.num_classes])
        net.rank = door.rank
        model = distribute(net, shard, door, case.method)
        train(
            model,
            shard.x.float(),
            shard.y.long(),
            shard.split == 0,
            shard.num_train,
            {"edge_index": shard.edge_index},
            case,
        )


def refused(data: str) -> dict[str, str]:
    bad: dict[str, Callable[[], nn.Module]] = {
        "hops": lambda: Bad(pyg.TAGConv(12, 4)),
        "own": lambda: Bad(TwoHops()),
        "flow": lambda: Bad(pyg.SAGEConv(12, 4, flow="target_to_source")),
        "aggr": lambda: Bad(pyg.GCNConv(12, 4, aggr="max")),
        "norm": lambda: nn.ModuleList([pyg.SAGEConv(12, 4), pyg.GraphNorm(4)]),
        "pooling": lambda: pyg.GraphUNet(12, 8, 4, depth=2),
        "none": lambda: nn.Linear(12, 4),
        "later": lambda: Bad(Small()),
        "lazy": lambda: Bad(pyg.SAGEConv(-1, 4)),
        "edges": lambda: Bad(pyg.SAGEConv(12, 4), "edges"),
        "weights": lambda: Bad(pyg.GCNConv(12, 4), "weights"),
        "rows": lambda: Bad(pyg.SAGEConv(12, 4), "rows"),
    }
    shard, _ = shard_of(Case(data, "sage"), dist.get_rank(), dist.get_world_size())
    x = shard.x.float()
    said: dict[str, str] = {}
    with Door() as door:
        for name, make in bad.items():
            with noting_error(said, name):
                distribute(make(), shard, door)(x, shard.edge_index)
        model = distribute(Bad(pyg.SAGEConv(12, 4)), shard, door)
        with noting_error(said, "half"):
            model(x.half(), shard.edge_index)
        with noting_error(said, "itself"):
            model.conv(x, shard.edge_index)  # type: ignore[operator]
        with noting_error(said, "twice"):
            distribute(model, shard, door)
    return said


@contextmanager
def noting_error(said: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except (Unsupported, ValueError) as error:
        said[name] = str(error)


def gradients(data: str) -> dict[str, Tensor]:
    """Of one pass, of two passes that add up, and of one in evaluation mode, where messages are exact."""
    case = Case(data, "sage", method=Sylvie(bits=8, staleness=0))
    shard, graph = shard_of(case, dist.get_rank(), dist.get_world_size())
    x, y, used = shard.x.float(), shard.y.long(), shard.split == 0
    by_pass = {}
    with Door() as door:
        model = distribute(build(case, graph.x.shape[1], graph.num_classes), shard, door, case.method)
        model.unused = nn.Parameter(torch.ones(2))

        def backward() -> Tensor:
            loss = functional.cross_entropy(model(x, None)[used], y[used], reduction="sum") / shard.num_train
            loss.backward()
            return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).clone()

        model.eval()
        by_pass["eval"] = backward()
        model.zero_grad()
        model.train()
        model.distributed.clock.epoch = -1  # type: ignore[union-attr]
        by_pass["once"] = backward()
        model.distributed.clock.epoch = -1  # type: ignore[union-attr]
        by_pass["twice"] = backward()
    return by_pass


def passes_of(data: str, method: Method, seed: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Of two passes of a sum over neighbours: this rank's share of the loss, and the whole graph's gradients."""
    case = Case(data, "graph")
    shard, graph = shard_of(case, dist.get_rank(), dist.get_world_size())
    x, y, used = shard.x.float(), shard.y.long(), shard.split == 0
    passes = []
    with Door() as door:
        model = distribute(build(case, graph.x.shape[1], graph.num_classes), shard, door, method, seed=seed)
        for _ in range(2):
            model.zero_grad()
            loss = functional.cross_entropy(model(x, None)[used], y[used], reduction="sum") / shard.num_train
            loss.backward()
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            passes.append((loss.detach(), gradients))
    return passes


def weights_that_change(data: str) -> tuple[Tensor, Tensor]:
    """Rows of a layer that is given other edge weights in a second pass; and what they should be."""
    shard, graph = shard_of(Case(data, "graph", ("weight",)), dist.get_rank(), dist.get_world_size())
    torch.manual_seed(1)
    conv = pyg.GraphConv(graph.x.shape[1], 4)
    x, edge_index = torch.from_numpy(graph.x).float(), torch.from_numpy(graph.edge_index).long()
    assert graph.edge_weight is not None
    assert shard.edge_weight is not None
    whole = conv(x, edge_index, 2 * torch.from_numpy(graph.edge_weight)).detach()[shard.original_ids]
    with Door() as door:
        model = distribute(pyg.Sequential("x, e, w", [(conv, "x, e, w -> x")]), shard, door)
        x_ND = shard.x.float()
        model(x_ND, None, shard.edge_weight)
        return model(x_ND, None, 2 * shard.edge_weight).detach(), whole
