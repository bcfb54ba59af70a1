"""Full-graph training on shards: the work of each rank of `thinwire train`."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.codecs import seed_from
from thinwire.fullgraph import messages
from thinwire.fullgraph.distributing import DistributedState, distribute
from thinwire.fullgraph.methods import Method
from thinwire.graphs import TRAIN, Manifest, Shard
from thinwire.links import Door
from thinwire.links.books import ChannelBook
from thinwire.links.cost import read_cost
from thinwire.training import run, score
from thinwire.training.checkpoint import Checkpoint
from thinwire.training.job import Job
from thinwire.training.models import build, build_own, is_own, widths_of
from thinwire.training.own_shard import own_shard
from thinwire.training.window import Window

# In a checkpoint: tensors of the weights' gradients' sum.
SUMS = "sums/"


def train(job: Job[Method]) -> dict[str, Any]:
    """Read the shard, train, and return the result."""
    with Door(limit_s=job.limit_s) as door, own_shard(job, door) as (shard, manifest):
        return Run(job, shard, door, manifest).train()


class Run(run.Run):
    """Trains with the job's method: halo features forward, halo gradients backward."""

    def __init__(self, job: Job[Method], shard: Shard, door: Door, manifest: Manifest) -> None:
        sizes = {"num_features": shard.x.shape[1], "num_classes": shard.num_classes}
        own_model = is_own(job.model)
        self.messages = [] if own_model else self._messages(job, manifest, **sizes)
        plain = (build_own if own_model else build)(job, **sizes).to(shard.x.device)
        self._edges = _asked_for(plain, shard) if own_model else {"edge_index": None, "edge_weight": shard.edge_weight}
        cost, checked = read_cost(job.profile), own_model and job.check
        model = distribute(
            plain, shard, door, job.method, seed=job.seed, cost=cost, check=checked, gradients=job.gradients_codec
        )
        super().__init__(job, shard, door, manifest, model)
        self.distributed: DistributedState = self.model.distributed  # type: ignore[assignment]
        self.gradients = self.distributed.gradients
        self.x = shard.x.float()
        self.used = (shard.split == TRAIN).nonzero().squeeze(1)
        self._assigned: dict[str, Any] | None = None

    @staticmethod
    def _messages(job: Job[Method], manifest: Manifest, num_features: int, num_classes: int) -> list[dict[str, Any]]:
        """Predicted messages; possible for the built-in models only."""
        widths = widths_of(num_features, num_classes, layers=job.layers, hidden=job.hidden)
        halo_rows = sum(part.num_halo for part in manifest.parts)
        return messages.to_json(messages.messages(job.model, widths, halo_rows, job.method))

    def first_plan(self) -> dict[str, Any]:
        assigner = self.distributed.assigner
        cost = read_cost(self.job.profile) if assigner is None else assigner.cost
        links = {} if cost is None else {"links": cost.to_json()["links"]}
        return {"messages": self.messages, **links}

    def step(self, epoch: int) -> float:
        # Random numbers that layers draw themselves (dropout of attention) depend on the epoch, also in a resumed run.
        torch.manual_seed(seed_from(self.job.seed, epoch, self.door.rank))
        self.model.train()
        self.optimizer.zero_grad()
        out = self.model(self.x, **self._edges)
        # Summed over ranks, this is the mean over the whole graph's training nodes.
        loss = score.loss_sum(out[self.used], self.y[self.used]) / self.shard.num_train
        self.distributed.note_loss(loss)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """The model's output for this shard's nodes, with exact messages."""
        self.model.eval()
        out: Tensor = self.model(self.x, **self._edges)
        return out

    def counted(self, books: Mapping[str, ChannelBook]) -> dict[str, float]:
        halo_bytes = sum(book.bytes_sent for name, book in books.items() if name.endswith((".forward", ".backward")))
        return {"halo_bytes": halo_bytes, "float32_bytes": sum(book.float32_bytes for book in books.values())}

    def planned(self) -> dict[str, Any]:
        """Predictions of the last bit assignment for this epoch. A new assignment is written to a plan file."""
        records = self.distributed.records
        facts: dict[str, Any] = {
            "stale": self.distributed.clock.stale,
            **self.about_gradients(),
        }
        if self.distributed.assigner is not None:
            facts |= self.distributed.assigner.event()
        if self._assigned is not None:
            facts["predicted_s"] = self._assigned["predicted_epoch_s"]
            facts["predicted_halo_bytes"] = self._assigned["predicted_bytes"]
        for record in records:
            self._assigned = record
            facts["assign_s"] = record["assign_s"] + record["trace_s"]
            self.replan(record)
        records.clear()
        return facts

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        assigner = self.distributed.assigner
        facts = {"cost": None} | ({} if assigner is None else assigner.state())
        sums, remembered = self.gradients.state()
        tensors = {f"{SUMS}{name}": tensor for name, tensor in remembered.items()}
        return facts | {"assigned": self._assigned, "gradients": sums}, self.distributed.state() | tensors

    def restore(self, state: Checkpoint, tensors: dict[str, Tensor], *, same: bool) -> None:
        remembered = {name.removeprefix(SUMS): tensor for name, tensor in tensors.items() if name.startswith(SUMS)}
        halo_rows = {name: tensor for name, tensor in tensors.items() if not name.startswith(SUMS)}
        self.distributed.restore(state.point.epochs - 1, halo_rows if same else {})
        if same and "gradients" in state.facts:
            self.gradients.restore(state.facts["gradients"], remembered)
        assigner = self.distributed.assigner
        if assigner is not None:
            given = assigner.cost
            assigner.restore(state.facts, same=same)
            if self.job.profile:  # which may have changed
                assigner.cost = given
        if same:
            self._assigned = state.facts["assigned"]

    def window(self) -> Window:
        return self.job.method.window()

    def begin_at(self, epoch: int) -> None:
        self.distributed.restore(epoch - 1, {})

    def choosing_s(self) -> float:
        assigner = self.distributed.assigner
        return 0.0 if assigner is None else assigner.choosing_s()

    def settle(self) -> None:
        self.gradients.interrupt()
        self.distributed.settle()

    def result(self) -> dict[str, Any]:
        return {
            **super().result(),
            "messages": self.messages,
            "assigned": self._assigned,
            "gradients": self.gradients.codec,
        }


def _asked_for(model: nn.Module, shard: Shard) -> dict[str, Tensor | None]:
    """The edges, and those of the edge values that the model's forward takes by name."""
    names = inspect.signature(model.forward).parameters
    offered = {"edge_index": shard.edge_index, "edge_weight": shard.edge_weight, "edge_attr": shard.edge_attr}
    if "edge_index" not in names:
        raise ValueError(f"{type(model).__name__}.forward takes {', '.join(names)}; it must take x and edge_index")
    return {name: value for name, value in offered.items() if name in names and value is not None}
