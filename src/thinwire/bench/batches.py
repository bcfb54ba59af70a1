"""`thinwire bench batches`: sample a batch and compute on it, on one core, compared with other libraries on one graph.

Samplers are compared by edges drawn per second: DGL's draws again for a vertex that several hops reach, ours does not.
Computation is forward and backward of one model on the same batches: PyG's default, which computes every layer for
every vertex by gather and scatter; PyG with trimmed layers; and ours.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from thinwire.minibatch import Salient, Topology, twins
from thinwire.minibatch.batch import Layer, Sampled
from thinwire.minibatch.kernels import new_sampler
from thinwire.minibatch.topology import Array
from thinwire.training.job import Job

FANOUTS = (15, 10, 5)
BATCH = 1024
BATCHES = {"sampling": 6, "computation": 1}  # batches per timing
FEATURES, HIDDEN, CLASSES = 100, 256, 47


@dataclass(frozen=True)
class Row:
    """One method's median time for a batch."""

    what: str  # sampling or computation
    method: str
    seconds: float
    edges_per_s: float
    ratio: float  # its rate over the first method's


@dataclass(frozen=True)
class BatchBench:
    """The rows of all methods, and the size of the graph they were measured on."""

    num_nodes: int
    num_edges: int
    batch: int
    fanouts: tuple[int, ...]
    repeats: int
    rows: list[Row]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Timed = Callable[[int], int]  # what is timed: from the number of the timing, how many edges it took


def run(
    *,
    num_nodes: int = 200_000,
    num_edges: int = 4_000_000,
    repeats: int = 5,
    seed: int = 0,
    on_progress: Callable[[float, str], None] = lambda share, what: None,
) -> BatchBench:
    """Time all methods, interleaved, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        topology = _graph(num_nodes, num_edges, seed)
        seeds = np.random.default_rng(seed + 1).permutation(num_nodes)[: BATCH * BATCHES["sampling"]]
        samplers: dict[str, Timed] = {"thinwire": _ours(topology, seeds), "numpy": _numpy(topology, seeds)}
        if importlib.util.find_spec("dgl") is not None:
            samplers["dgl"] = _dgl(topology, seeds)
        rows = _timed("sampling", samplers, repeats, lambda share, what: on_progress(share / 2, what))
        models = _models(topology, seeds)
        rows += _timed("computation", models, repeats, lambda share, what: on_progress(0.5 + share / 2, what))
    finally:
        torch.set_num_threads(threads)
    return BatchBench(num_nodes, num_edges, BATCH, FANOUTS, repeats, rows)


def _timed(what: str, methods: dict[str, Timed], repeats: int, on_progress: Callable[[float, str], None]) -> list[Row]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for repeat in range(-1, repeats):  # the first one warms up
        for number, (name, method) in enumerate(methods.items()):
            on_progress(((repeat + 1) + number / len(methods)) / (repeats + 1), f"{what}: {name}")
            start = time.perf_counter()
            edges = method(repeat + 1)
            if repeat >= 0:
                taken[name].append((time.perf_counter() - start, edges))
    rates = {name: statistics.median(edges / seconds for seconds, edges in timings) for name, timings in taken.items()}
    first = next(iter(rates.values()))
    return [
        Row(
            what,
            name,
            statistics.median(seconds for seconds, _ in timings) / BATCHES[what],
            rates[name],
            rates[name] / first,
        )
        for name, timings in taken.items()
    ]


def _graph(num_nodes: int, num_edges: int, seed: int) -> Topology:
    """A heavy-tailed random graph: sources are drawn with unequal weights, so some vertices have many edges."""
    randomness = np.random.default_rng(seed)
    sources = (num_nodes * randomness.random(num_edges) ** 1.5).astype(np.int32)
    degrees = np.bincount(randomness.integers(0, num_nodes, num_edges), minlength=num_nodes)
    return Topology(
        np.concatenate(([0], np.cumsum(degrees))),
        randomness.permutation(num_nodes).astype(np.int32)[sources],
        np.array([0, num_nodes]),
    )


def _ours(topology: Topology, seeds: Array) -> Timed:
    """Our sampler, which also makes the transpose and separates own, cached and remote vertices. On one thread."""
    none = np.zeros(0, dtype=np.int64)
    args = (topology.indptr, topology.indices, topology.starts, 0, none, FANOUTS)
    sampler = new_sampler(*args, with_edges=False, ahead=1)  # one batch at a time

    def one_timing(number: int) -> int:
        ends = np.arange(BATCH, len(seeds) + 1, BATCH)
        sampler.add(seeds, ends, (number * len(ends) + np.arange(len(ends))).astype(np.uint64))
        return sum(len(sampler.next()["columns"]) for _ in ends)

    return one_timing


def _numpy(topology: Topology, seeds: Array) -> Timed:
    none = np.zeros(0, dtype=np.int64)

    def one_timing(number: int) -> int:
        edges = 0
        for batch, batch_seeds in enumerate(seeds.reshape(-1, BATCH)):
            key = number * len(seeds) + batch
            args = (topology.indptr, topology.indices, topology.starts, 0, none, batch_seeds, FANOUTS, key)
            edges += len(twins.sample(*args)["columns"])
        return edges

    return one_timing


def _dgl(topology: Topology, seeds: Array) -> Timed:
    import dgl  # type: ignore[import-not-found, unused-ignore]

    graph = dgl.graph(
        (
            "csc",
            (torch.from_numpy(topology.indptr), torch.from_numpy(topology.indices).long(), torch.tensor([]).long()),
        ),
        num_nodes=topology.num_nodes,
    ).formats("csc")
    sampler = dgl.dataloading.NeighborSampler(list(reversed(FANOUTS)))  # DGL takes fanouts in reverse order
    parts = torch.from_numpy(seeds).split(BATCH)

    def one_timing(number: int) -> int:
        return sum(
            sum(block.num_edges() for block in sampler.sample_blocks(graph, batch_seeds)[2]) for batch_seeds in parts
        )

    return one_timing


def _models(topology: Topology, seeds: Array) -> dict[str, Timed]:
    from torch_geometric.utils import trim_to_layer

    from thinwire.minibatch import layers
    from thinwire.training.models import build

    job = Job(Salient(fanouts=FANOUTS), data="", model="sage", layers=len(FANOUTS), hidden=HIDDEN, norm="none")
    model = build(job, num_features=FEATURES, num_classes=CLASSES)
    none = np.zeros(0, dtype=np.int64)
    sampler = new_sampler(topology.indptr, topology.indices, topology.starts, 0, none, FANOUTS, with_edges=False)
    ends = np.arange(1, BATCHES["computation"] + 1) * BATCH
    sampler.add(seeds, ends, ends.astype(np.uint64))
    batches = []
    for _ in ends:
        sampled = Sampled.of(sampler.next())
        batch_layers = tuple(Layer(sampled, topology, number) for number in range(len(FANOUTS)))
        x, y = torch.randn(len(sampled.nodes), FEATURES), torch.randint(CLASSES, (BATCH,))
        batches.append((x, y, batch_layers, batch_layers[0].edge_index, sampled))

    def learn(out: torch.Tensor, y: torch.Tensor) -> None:
        torch.nn.functional.cross_entropy(out[:BATCH], y).backward()

    def ours(number: int) -> int:
        for x, y, batch_layers, _, sampled in batches:
            # New layers, so that nothing is cached.
            fresh = tuple(Layer(sampled, topology, layer) for layer in range(len(batch_layers)))
            learn(layers.forward(model, x, fresh), y)
        return sum(len(edge_index[0]) for _, _, _, edge_index, _ in batches)

    def pyg(number: int) -> int:
        for x, y, _, edge_index, _ in batches:
            learn(model(x, edge_index), y)
        return sum(len(edge_index[0]) for _, _, _, edge_index, _ in batches)

    def trimmed(number: int) -> int:
        for x, y, batch_layers, edge_index, sampled in batches:
            nodes = np.diff(sampled.num_nodes, prepend=0).tolist()
            ends = [layer.num_edges for layer in reversed(batch_layers)]
            edges = np.diff(ends, prepend=0).tolist()
            for layer, conv in enumerate(model.convs):
                x, edge_index, _ = trim_to_layer(layer, nodes, edges, x, edge_index)
                x = model.after(layer, conv(x, edge_index))
            learn(x, y)
        return sum(len(edge_index[0]) for _, _, _, edge_index, _ in batches)

    return {"thinwire": ours, "PyG": pyg, "PyG, trimmed": trimmed}
