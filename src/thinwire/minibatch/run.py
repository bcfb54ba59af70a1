"""Training on sampled batches: the work of each rank of `thinwire train salient`."""

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from thinwire.codecs import seed_from
from thinwire.graphs import Manifest, Shard
from thinwire.links import Door
from thinwire.links.books import ChannelBook
from thinwire.links.cost import read_cost
from thinwire.minibatch import cache, inference, layers, predict
from thinwire.minibatch.batch import Batch
from thinwire.minibatch.loader import Loader
from thinwire.minibatch.methods import Salient
from thinwire.minibatch.topology import Topology
from thinwire.training import run, score
from thinwire.training.checkpoint import Checkpoint
from thinwire.training.gradients import GradientSum, choosers
from thinwire.training.job import Job
from thinwire.training.models import Stack, build
from thinwire.training.own_shard import own_shard
from thinwire.training.window import WARM, Window


def train(job: Job[Salient]) -> dict[str, Any]:
    """Read the shard, train, and return the result."""
    with Door(limit_s=job.limit_s) as door, own_shard(job, door) as (shard, manifest):
        return Run(job, shard, door, manifest, Topology.read(manifest.folder)).train()


# The sum of the first group hides behind the backward pass of the rest. Each group costs a round of small messages.
GRADIENT_GROUPS = 2
# Steps by which gradients' codec is chosen; the first recorded ones may wait for batches from before.
RECORDED = {"skipped": 8, "noted": 16, "unsettled": 8}


class Run(run.Run):
    """Trains on seeds of its own part, with neighbours and features of the whole graph. Each step sums gradients."""

    model: Stack

    def __init__(self, job: Job[Salient], shard: Shard, door: Door, manifest: Manifest, topology: Topology) -> None:
        check(job)
        model = build(job, num_features=shard.x.shape[1], num_classes=shard.num_classes).to(shard.x.device)
        super().__init__(job, shard, door, manifest, model)
        self._place = "no step"  # of the run, for errors
        self.topology = topology
        codec = job.gradients_codec
        self.gradients = GradientSum(
            model.named_parameters(),
            door,
            groups=GRADIENT_GROUPS,
            codec=codec,
            seed=job.seed,
            place=lambda: self._place,
            chooser=choosers(codec, door=door, seed=job.seed, cost=read_cost(job.profile), **RECORDED),
        )
        door.books.take()
        self.loader = Loader(shard, door, job.method, topology, seed=job.seed, epochs=job.epochs)
        filled = door.books.take().get(cache.CHANNEL)
        self.cache_fill_bytes = int(self.sum_over_ranks([float(filled.bytes_sent if filled else 0)])[0])
        self._batches: Iterator[Batch] = iter(())
        self._next = -1  # the epoch that `_batches` continues with; -1: none
        self._first, self._lost = 0, 0.0  # this epoch's first step after a resume, and the loss of the steps before it
        self._wanted = 0
        self.forward_least_s = 0.0  # the least time of a forward pass, to emulate a slower host
        self.predicted = self._predict()

    def step(self, epoch: int) -> float:
        if self._next != epoch:
            self._batches = self.loader.batches(epoch, self.horizon - epoch, self._first)
        self._next = epoch + 1 if epoch + 1 < self.horizon else -1
        self.model.train()
        for batch in islice(self._batches, len(self.loader) - self._first):
            self._lost += self._learn(batch)
            self._keep(batch.step + 1)
        lost, self._lost = self._lost, 0.0
        return lost / self.shard.num_train

    def _keep(self, done: int) -> None:
        """Save a checkpoint within the epoch, every `checkpoint_steps` steps."""
        interval = self.job.checkpoint_steps
        if self.job.out and interval and done % interval == 0 and done < len(self.loader):
            self.save(done)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        sums, tensors = self.gradients.state()
        return {"lost": self._lost, "gradients": sums}, tensors

    def restore(self, state: Checkpoint, tensors: dict[str, Tensor], *, same: bool) -> None:
        self._first, self._lost = state.point.steps, state.facts.get("lost", 0.0)
        if same and "gradients" in state.facts:
            self.gradients.restore(state.facts["gradients"], tensors)
            self.predicted = self._with_gradients(self.predicted)

    def _learn(self, batch: Batch) -> float:
        # Dropout depends on the batch alone, also in a resumed run.
        # (torch.manual_seed takes milliseconds: it records the call stack for devices that are not there.)
        seed = seed_from(self.job.seed, batch.epoch, batch.step, self.door.rank)
        torch.default_generator.manual_seed(seed)
        if batch.x.is_cuda:
            torch.cuda.manual_seed(seed)
        self._place = f"epoch {batch.epoch + 1}, step {batch.step + 1}"
        self.gradients.step_begins()
        self.optimizer.zero_grad()
        start_s = time.perf_counter()
        out = layers.forward(self.model, batch.x, batch.layers)
        if self.forward_least_s:  # even a sleep of 0 gives up the core
            time.sleep(max(0.0, start_s + self.forward_least_s - time.perf_counter()))
        y = batch.y.float() if batch.y.ndim == 2 else batch.y.long()
        total = score.loss_sum(out, y)
        (total / batch.total).backward()
        self.optimizer.step()
        return float(total.detach())

    def evaluate(self) -> Tensor:
        """The model's output for this shard's nodes, with all neighbours."""
        return inference.exact(self.model, self.shard, self.topology, self.door)

    def counted(self, books: Mapping[str, ChannelBook]) -> dict[str, float]:
        rows = self.loader.rows_wanted - self._wanted
        self._wanted = self.loader.rows_wanted
        sent = {name: book.bytes_sent for name, book in books.items()}
        features = sum(size for name, size in sent.items() if name.startswith("batch."))
        full = sum(book.float32_bytes for book in books.values())
        return {"feature_bytes": features, "remote_rows": rows, "float32_bytes": full}

    def planned(self) -> dict[str, Any]:
        begun = {"first_step": self._first} if self._first else {}  # the event counts the rest of the epoch only
        self._first = 0
        if self.gradients.records:
            self.predicted = self._with_gradients(self.predicted)
            self.gradients.records[-1]["predicted"] = self.predicted
        return begun | {
            **self.about_gradients(),
            "predicted_bytes": self.predicted["bytes_per_epoch"],
            "predicted_rows": self.predicted["remote_rows"],
        }

    def first_plan(self) -> dict[str, Any]:
        return {"predicted": self.predicted, "cache_fill_bytes": self.cache_fill_bytes}

    def result(self) -> dict[str, Any]:
        mine = {
            "predicted": self.predicted,
            "cache_fill_bytes": self.cache_fill_bytes,
            "gradients": self.gradients.codec,
        }
        return {**super().result(), **mine}

    def settle(self) -> None:
        self.gradients.interrupt()

    def window(self) -> Window:
        """The pipeline is empty at the beginning and drained at the end, so those epochs don't count."""
        return Window(0, WARM, [0.0, 1.0, 1.0, 0.0])

    def _predict(self) -> dict[str, Any]:
        """The predicted traffic of an epoch, over all ranks."""
        n = self.door.world_size
        rows_here = predict.rows_of(self.loader.question, self.loader.cache.ids, self.job.method.cache_policy)
        rows = self.sum_over_ranks([rows_here * (rank == self.door.rank) for rank in range(n)])
        cached = self.sum_over_ranks([float(len(self.loader.cache.ids))])[0]
        traffic = predict.traffic(rows, len(self.loader), self.loader.rows)
        return self._with_gradients(
            {
                "steps": len(self.loader),
                "cached_rows": int(cached),
                "remote_rows": int(traffic.rows),
                "feature_bytes": int(traffic.feature_bytes),
            }
        )

    def _with_gradients(self, predicted: dict[str, Any]) -> dict[str, Any]:
        """The same with the weights' gradients by the codec that is in force now."""
        gradients = len(self.loader) * self.gradients.bytes_of_sum()
        return predicted | {"gradient_bytes": gradients, "bytes_per_epoch": predicted["feature_bytes"] + gradients}


def check(job: Job[Salient]) -> None:
    """Raise if the model's options don't fit the method."""
    if len(job.method.fanouts) != job.layers:
        fanouts = ",".join(map(str, job.method.fanouts))
        raise ValueError(f"{job.layers} layers and fan-outs {fanouts}; give one fan-out for each layer")
    if job.norm == "batch":
        raise ValueError(
            "norm is batch: a batch's statistics differ on every rank; give layer or none, or train on the whole graph"
        )
