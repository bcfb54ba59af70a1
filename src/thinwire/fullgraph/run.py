"""Train on shards: what every rank of `thinwire train` does. Events go to a file, a line an epoch."""

import json
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from thinwire import graphs
from thinwire.fullgraph.distribute import Places, distribute
from thinwire.fullgraph.models import build
from thinwire.fullgraph.plan import Plan
from thinwire.graphs import TEST, TRAIN, VALIDATION, Shard
from thinwire.launch import Member
from thinwire.links import Door


@dataclass(frozen=True)
class Job:
    """Everything that a run depends on."""

    shards: str
    plan: Plan
    model: str = "sage"
    layers: int = 3
    hidden: int = 128
    norm: bool = True
    lr: float = 0.01
    epochs: int = 60
    evaluate_every: int = 5
    events: str = ""  # a file to append to; none where empty


def work(member: Member, job: Job) -> dict[str, Any]:
    """Train; what came of it, the same on every rank."""
    shard = graphs.read_shard(Path(job.shards), member.rank)
    with Door(member.store) as door:
        run = _Run(job, shard, door)
        for epoch in range(job.epochs):
            run.epoch(epoch)
        return run.result()


class _Run:
    """One rank's part of it."""

    def __init__(self, job: Job, shard: Shard, door: Door) -> None:
        self.job, self.shard, self.door = job, shard, door
        made = build(
            job.model,
            num_features=shard.x.shape[1],
            num_classes=shard.num_classes,
            layers=job.layers,
            hidden=job.hidden,
            norm=job.norm,
            seed=job.plan.seed,
        )
        self.model = distribute(made, shard, door, job.plan)
        self.places: Places = self.model.places  # type: ignore[assignment]
        self.x = shard.x.float()
        self.y = shard.y.float() if shard.y.ndim == 2 else shard.y.long()
        self.used = (shard.split == TRAIN).nonzero().squeeze(1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=job.lr)
        self.losses: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.scores: dict[str, float | None] = {"val_score": None, "test_score": None}  # not evaluated yet

    def epoch(self, epoch: int) -> None:
        self.door.books.take()
        start = time.perf_counter()
        self.model.train()
        self.optimizer.zero_grad()
        loss = self._loss(self.model(self.x))
        loss.backward()
        self.optimizer.step()
        seconds = time.perf_counter() - start
        books = self.door.books.take()
        exposed_s = sum(book.exposed_s for book in books.values())
        sent = float(sum(book.bytes_sent for book in books.values()))
        thin = sum(book.bytes_sent for name, book in books.items() if name.endswith((".forward", ".backward")))
        values = sum(halo.take_values_sent() for halo in self.places.halos)
        total, sent, saved = self._sum([float(loss.detach()), sent, 4.0 * values - thin])
        self.losses.append(total)
        if (epoch + 1) % self.job.evaluate_every == 0 or epoch + 1 == self.job.epochs:
            self.scores = self._scores()
        row: dict[str, Any] = {"epoch": epoch, "loss": total, "seconds": seconds, "exposed_s": exposed_s, "bytes": sent}
        row |= {"float32_bytes": sent + saved, **self.scores}
        self.rows.append(row)
        if self.door.rank == 0 and self.job.events:
            with Path(self.job.events).open("a") as file:
                file.write(json.dumps(row) + "\n")

    def result(self) -> dict[str, Any]:
        later = self.rows[1:] or self.rows  # the first epoch also fetches layer 0
        return {
            "method": self.job.plan.method,
            "model": self.job.model,
            "workers": self.door.world_size,
            "epochs": self.job.epochs,
            "seed": self.job.plan.seed,
            "plan": self.job.plan.to_json(),
            "losses": self.losses,
            **self.scores,
            "epoch_s_median": statistics.median(row["seconds"] for row in later),
            "bytes_per_epoch": int(statistics.median(row["bytes"] for row in later)),
            "float32_bytes_per_epoch": int(statistics.median(row["float32_bytes"] for row in later)),
            "exposed_s_per_epoch": statistics.median(row["exposed_s"] for row in later),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def _loss(self, out: Tensor) -> Tensor:
        """This shard's share of the mean over the whole graph's training nodes."""
        out, y = out[self.used], self.y[self.used]
        if y.ndim == 2:
            total = functional.binary_cross_entropy_with_logits(out, y, reduction="sum") / y.shape[1]
        else:
            total = functional.cross_entropy(out, y, reduction="sum")
        return total / self.shard.num_train

    @torch.no_grad()
    def _scores(self) -> dict[str, float | None]:
        """Accuracy, or micro-F1 where nodes have several labels; exact messages."""
        self.model.eval()
        out = self.model(self.x)
        counts: list[float] = []
        for split in (VALIDATION, TEST):
            chosen = self.shard.split == split
            counts += _counts(out[chosen], self.y[chosen])
        summed = self._sum(counts)
        val, test = (hits / max(1.0, tries) for hits, tries in (summed[:2], summed[2:]))
        return {"val_score": val, "test_score": test}

    def _sum(self, values: list[float]) -> list[float]:
        told = torch.tensor(values, dtype=torch.float64)
        return [float(value) for value in self.door.all_reduce(told, channel="scores").wait()]


def _counts(out: Tensor, y: Tensor) -> list[float]:
    """Hits and tries, whose ratio is the score."""
    if y.ndim == 1:
        return [float((out.argmax(1) == y).sum()), float(len(y))]
    said, right = out > 0, y > 0
    return [2 * float((said & right).sum()), float(said.sum() + right.sum())]
