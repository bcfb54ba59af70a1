"""Batches for a training loop: takes the place of a neighbour loader and a distributed feature store."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from thinwire.graphs import TRAIN, Shard
from thinwire.links import Door
from thinwire.minibatch import policies
from thinwire.minibatch.batch import Batch, Layer, Sampled
from thinwire.minibatch.cache import Cache, fill
from thinwire.minibatch.kernels import new_sampler
from thinwire.minibatch.methods import Salient
from thinwire.minibatch.pipeline import Pipeline
from thinwire.minibatch.policies import Question
from thinwire.minibatch.rows import RowFormat
from thinwire.minibatch.schedule import schedule_of
from thinwire.minibatch.topology import Array, Topology
from thinwire.training.agreement import expect_same_start

# Batches that are sampled ahead, beside those in the pipeline.
AHEAD = 4


class Loader:
    """Batches of this rank's seeds. All ranks iterate together, over the same number of batches.

    `seeds` are the vertices to start from, for each rank, in the shards' numbering; the training nodes by default. Each
    iteration is an epoch, in an order of its own. `batches` goes through several epochs without draining the pipeline.
    """

    def __init__(
        self,
        shard: Shard,
        door: Door,
        method: Salient,
        topology: Topology,
        *,
        seed: int = 0,
        seeds: Sequence[Array] | None = None,
        shuffled: bool = True,
        epochs: int = 1,
        channel: str = "batch",
    ) -> None:
        if topology.num_parts != door.world_size:
            raise ValueError(f"the topology has {topology.num_parts} parts, there are {door.world_size} ranks")
        if shard.start != topology.starts[door.rank] or shard.num_owned != np.diff(topology.starts)[door.rank]:
            raise ValueError(
                f"rank {door.rank} was given the shard of nodes {shard.start} to {shard.start + shard.num_owned}, the "
                f"topology has {topology.starts[door.rank]} to {topology.starts[door.rank + 1]} there; give "
                "graphs.read_shard(folder, rank) of the same folder"
            )
        expect_same_start(door, shard, method, seed)
        members = topology.members(TRAIN) if seeds is None else seeds
        self.method = method
        self.topology = topology
        self.schedule = schedule_of(members, door.rank, method.batch, seed, shuffled=shuffled)
        self.question = Question(topology, self.schedule, method.fanouts, epochs, method.threads)
        self.cache = cached(self.question, method, shard, door)
        self.rows = RowFormat.of(method.rows, shard.x)
        self._pipeline = Pipeline(door, shard.x, self.cache, self.rows, depth=method.depth, channel=channel, seed=seed)
        self._epoch = 0

    def __len__(self) -> int:
        """The steps of an epoch, the same on all ranks."""
        return self.schedule.steps

    def __iter__(self) -> Iterator[Batch]:
        self._epoch += 1
        return self.batches(self._epoch - 1, 1)

    @property
    def rows_wanted(self) -> int:
        """Rows fetched from other ranks so far."""
        return self._pipeline.rows_wanted

    def batches(self, first: int, epochs: int, step: int = 0) -> Iterator[Batch]:
        """The batches of `epochs` epochs, from step `step` of epoch `first` on."""
        all_steps = itertools.product(range(first, first + epochs), range(self.schedule.steps))
        steps = itertools.islice(all_steps, step, None)
        ready = self._pipeline.run(self._sampled(first, epochs, step), first * self.schedule.steps + step)
        for (epoch, step), (sampled, x) in zip(steps, ready, strict=True):
            count = sampled.num_nodes[0]
            layers = tuple(Layer(sampled, self.topology, number) for number in range(len(self.method.fanouts)))
            hops = np.diff(sampled.num_nodes, prepend=0)
            y = torch.from_numpy(self.topology.y[sampled.nodes[:count].cpu().numpy()]).to(x.device)
            yield Batch(
                x, y, sampled.nodes, count, layers, tuple(hops.tolist()), self.schedule.total(step), epoch, step
            )

    def _sampled(self, first: int, epochs: int, step: int) -> Iterator[Sampled]:
        topology, method = self.topology, self.method
        held = (topology.starts, self.schedule.rank, self.cache.ids)
        sampler = new_sampler(
            topology.indptr,
            topology.indices,
            *held,
            method.fanouts,
            with_edges=topology.edge_weight is not None,
            threads=method.threads,
            ahead=AHEAD + method.threads,
        )
        before = 0
        for epoch in range(first, first + epochs):
            seeds, ends, keys = self.schedule.work(epoch, step if epoch == first else 0)
            sampler.add(seeds, ends, keys)
            # The next epoch is added before this one ends, so that the threads always have work.
            yield from (Sampled.of(sampler.next()) for _ in range(before))
            before = len(ends)
        yield from (Sampled.of(sampler.next()) for _ in range(before))


def cached(question: Question, method: Salient, shard: Shard, door: Door) -> Cache:
    """The cache that the method's policy chooses, filled with features."""
    room = policies.capacity(method.cache, question.topology.num_nodes, question.topology.num_parts)
    if method.cache_policy == "none" or room == 0 or door.world_size == 1:
        return Cache(np.zeros(0, dtype=np.int64), shard.x[:0])
    ids = policies.choose(policies.worth(method.cache_policy, question), room)
    return fill(ids, shard.x, question.topology.starts, door)
