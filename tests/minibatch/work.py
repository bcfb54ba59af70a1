"""What ranks run, importable since ranks are processes; and the same in one process."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.nn import SAGEConv

from thinwire import graphs
from thinwire.codecs import seed_from
from thinwire.graphs import TRAIN
from thinwire.links import Door, PeerLost
from thinwire.minibatch import Loader, Salient, Topology, inference, layers
from thinwire.minibatch.batch import Layer, Sampled
from thinwire.minibatch.kernels import new_sampler
from thinwire.minibatch.run import Run
from thinwire.minibatch.schedule import schedule_of
from thinwire.training import score
from thinwire.training.job import Job
from thinwire.training.models import build
from thinwire.training.own_shard import own_shard


@dataclass
class Found:
    """What came of a job on one rank."""

    losses: list[float]
    weights: dict[str, Tensor]
    rows: list[dict[str, Any]]
    cached: int
    all_cached: int  # over all ranks
    filled: int  # bytes
    held: int
    predicted: dict[str, Any]
    out: Tensor
    original_ids: Tensor


def jobs(folder: str, todo: Sequence[Job[Salient]]) -> list[Found]:
    manifest = graphs.read_manifest(Path(folder))
    topology = Topology.read(Path(folder))
    shard = graphs.read_shard(Path(folder), dist.get_rank())
    results = []
    with Door() as door:
        for job in todo:
            run = Run(job, shard, door, manifest, topology)
            for epoch in range(job.epochs):
                run.epoch(epoch)
            cache = run.loader.cache
            weights = {name: value.clone() for name, value in run.model.state_dict().items()}
            results.append(
                Found(
                    run.losses,
                    weights,
                    run.rows,
                    len(cache.ids),
                    run.predicted["cached_rows"],
                    run.cache_fill_bytes,
                    shard.num_owned + len(cache.x),
                    run.predicted,
                    run.evaluate(),
                    shard.original_ids,
                )
            )
    return results


def results(todo: Sequence[Job[Salient]]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Whole runs, one after the other: what each returns, and its epochs' rows."""
    found = []
    for job in todo:
        with Door() as door, own_shard(job, door) as (shard, manifest):
            run = Run(job, shard, door, manifest, Topology.read(manifest.folder))
            found.append((run.train(), run.rows))
    return found


def in_one(folder: Path, job: Job[Salient]) -> tuple[list[float], dict[str, Tensor]]:
    """The same seeds and batches, all ranks' one after the other, every feature at hand."""
    topology = Topology.read(folder)
    shards = [graphs.read_shard(folder, part) for part in range(topology.num_parts)]
    x = torch.cat([shard.x for shard in shards]).float()
    model = build(job, num_features=x.shape[1], num_classes=shards[0].num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=job.lr)
    members = topology.members(TRAIN)
    method = job.method
    schedules = [schedule_of(members, rank, method.batch, job.seed) for rank in range(len(members))]
    none = np.zeros(0, dtype=np.int64)
    losses = []
    for epoch in range(job.epochs):
        samplers = []
        for rank, schedule in enumerate(schedules):
            sampler = new_sampler(topology.indptr, topology.indices, topology.starts, rank, none, method.fanouts)
            sampler.add(*schedule.work(epoch))
            samplers.append(sampler)
        lost = 0.0
        for step in range(schedules[0].steps):
            optimizer.zero_grad()
            for rank, sampler in enumerate(samplers):
                sampled = Sampled.of(sampler.next())
                torch.manual_seed(seed_from(job.seed, epoch, step, rank))
                every = tuple(Layer(sampled, topology, number) for number in range(len(method.fanouts)))
                out = layers.forward(model, x[sampled.nodes], every)
                y = torch.from_numpy(topology.y[sampled.nodes[: len(out)].numpy()]).long()
                total = score.loss_sum(out, y)
                (total / schedules[0].total(step)).backward()
                lost += float(total.detach())
            optimizer.step()
        losses.append(lost / shards[0].num_train)
    return losses, model.state_dict()


class Inference(NamedTuple):
    """What an untrained model says of this rank's nodes; the bytes that it took to sample."""

    exact: Tensor
    sampled: Tensor
    sent: int


def sampled_inference(folder: str, job: Job[Salient], methods: Sequence[Salient]) -> list[Inference]:
    """By each of these methods."""
    topology = Topology.read(Path(folder))
    shard = graphs.read_shard(Path(folder), dist.get_rank())
    seeds = [np.arange(topology.starts[part], topology.starts[part + 1]) for part in range(topology.num_parts)]
    with Door() as door:
        model = build(job, num_features=shard.x.shape[1], num_classes=shard.num_classes)
        exact = inference.exact(model, shard, topology, door)
        results = []
        for method in methods:
            door.books.take()
            ids, out = inference.sampled(model, shard, topology, door, method, seeds)
            assert np.array_equal(ids, seeds[door.rank])
            sent = sum(book.bytes_sent for name, book in door.books.take().items() if name.startswith("inference."))
            results.append(Inference(exact, out, sent))
        return results


class Own(torch.nn.Module):
    """A model of a user's own, as in docs/minibatch.md."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = torch.nn.ModuleList([SAGEConv(num_features, 16), SAGEConv(16, num_classes)])

    def forward(self, x: Tensor, every: Sequence[Layer]) -> Tensor:
        for number, layer in enumerate(every):
            x = self.layer(number, x, layer)
        return x

    def layer(self, number: int, x: Tensor, layer: Layer) -> Tensor:
        out: Tensor = self.convs[number]((x[: layer.num_sources], x[: layer.num_targets]), layer.edge_index)
        return out.relu() if number == 0 else out


class OwnInference(NamedTuple):
    exact: Tensor
    sampled: Tensor  # with all neighbours
    ids: Tensor  # of this shard's nodes
    refusal: str  # of a model whose layers are not known


def own_inference(folder: str, method: Salient) -> OwnInference:
    topology = Topology.read(Path(folder))
    shard = graphs.read_shard(Path(folder), dist.get_rank())
    seeds = [np.arange(topology.starts[part], topology.starts[part + 1]) for part in range(topology.num_parts)]
    model = Own(shard.x.shape[1], shard.num_classes).eval()
    with Door() as door:
        exact = inference.exact([partial(model.layer, number) for number in range(2)], shard, topology, door)
        _, out = inference.sampled(model, shard, topology, door, method, seeds)
        try:
            inference.exact(model, shard, topology, door)  # type: ignore[arg-type]
        except ValueError as error:
            return OwnInference(exact, out, shard.original_ids, str(error))
        raise AssertionError


def batches(folder: str, method: Salient) -> list[tuple[Tensor, Tensor, Tensor]]:
    """An epoch's batches from a loader: features, labels, vertices."""
    topology = Topology.read(Path(folder))
    shard = graphs.read_shard(Path(folder), dist.get_rank())
    with Door() as door:
        loader = Loader(shard, door, method, topology)
        batches_seen = [(batch.x, batch.y, batch.n_id) for batch in loader]
        assert len(batches_seen) == len(loader)
        return batches_seen


def another_ranks_shard(folder: str, method: Salient) -> str:
    """What is said to who gives the wrong one."""
    with Door() as door, pytest.raises(ValueError, match="was given the shard of nodes") as error:
        Loader(graphs.read_shard(Path(folder), 1 - dist.get_rank()), door, method, Topology.read(Path(folder)))
    return str(error.value)


def killed_in_the_middle(folder: str, out: str, method: Salient) -> None:
    """Rank 1 dies in its third batch; the others note what they are told, long before the limit."""
    topology = Topology.read(Path(folder))
    shard = graphs.read_shard(Path(folder), dist.get_rank())
    with Door(limit_s=600.0) as door:
        loader = Loader(shard, door, replace(method, batch=4), topology)
        try:
            for number, _ in enumerate(loader):
                if door.rank == 1 and number == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
        except PeerLost as error:
            (Path(out) / str(dist.get_rank())).write_text(str(error))
            raise
