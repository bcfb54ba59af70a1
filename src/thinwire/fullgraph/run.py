"""Train on shards: what every rank of `thinwire train` does. Events go to a file, a line an epoch."""

import json
import math
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire import artifacts
from thinwire.codecs import seed_from
from thinwire.fullgraph import checkpoint, messages, predictions, score
from thinwire.fullgraph.checkpoint import Checkpoint, Place
from thinwire.fullgraph.distribute import Places, distribute
from thinwire.fullgraph.job import Job
from thinwire.fullgraph.models import build, widths_of
from thinwire.fullgraph.own_shard import own_shard
from thinwire.fullgraph.saved import load_optimizer, optimizer_tensors, resumed
from thinwire.fullgraph.wire import NotFinite
from thinwire.graphs import TEST, TRAIN, VALIDATION, Manifest, Shard
from thinwire.launch import Member
from thinwire.links import Door
from thinwire.links.cost import CostModel, read_cost

PLAN = "plan.json"
PREDICTIONS = "predictions.npz"


def train(member: Member, job: Job) -> dict[str, Any]:
    """From the shard to the result."""
    with Door(member.store) as door, own_shard(member, job) as (shard, manifest):
        run = Run(job, shard, door, manifest)
        if job.resume:
            run.resume()
        run.write_plan()
        try:
            for epoch in range(run.done, job.epochs):
                run.epoch(epoch)
        except NotFinite as error:
            raise NotFinite(f"{error}; {run.kept}") from None
        run.finish()
        return run.result()


class Run:
    """One rank's part of it."""

    def __init__(self, job: Job, shard: Shard, door: Door, manifest: Manifest) -> None:
        self.job, self.shard, self.door = job, shard, door
        widths = widths_of(shard.x.shape[1], shard.num_classes, layers=job.layers, hidden=job.hidden)
        halo_rows = sum(part["num_halo"] for part in manifest.parts)
        self.messages = messages.to_json(messages.messages(job.model, widths, halo_rows, job.plan.codec()))
        made = build(
            job.model,
            num_features=shard.x.shape[1],
            num_classes=shard.num_classes,
            layers=job.layers,
            hidden=job.hidden,
            norm=job.norm,
            dropout=job.dropout,
            seed=job.plan.seed,
        ).to(shard.x.device)
        self.model = distribute(made, shard, door, job.plan, read_cost(job.profile))
        self.places: Places = self.model.places  # type: ignore[assignment]
        self.facts = {"job": job.identity(), "world_size": door.world_size, "data": manifest.checksum}
        self.x = shard.x.float()
        self.y = shard.y.float() if shard.y.ndim == 2 else shard.y.long()
        self.used = (shard.split == TRAIN).nonzero().squeeze(1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=job.lr)
        self.losses: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.scores: dict[str, float | None] = {"val_score": None, "test_score": None}  # not evaluated yet
        self.kept = "no checkpoint was kept"
        self._plans = 0  # assignments of bits so far
        self._assigned: dict[str, Any] | None = None

    @property
    def done(self) -> int:
        """Epochs."""
        return len(self.losses)

    def write_plan(self) -> None:
        if self.job.out and self.door.rank == 0:
            stamp = artifacts.stamp(seed=self.job.plan.seed, world_size=self.door.world_size)
            content = {**stamp, "data": self.job.data, **self.job.identity(), "messages": self.messages}
            artifacts.write_json(Path(self.job.out) / PLAN, content)

    def step(self, epoch: int) -> float:
        """One epoch of training; this shard's share of the loss."""
        # What layers draw by themselves (attention's dropout) is a matter of the epoch too, resumed or not.
        torch.manual_seed(seed_from(self.job.plan.seed, epoch, self.door.rank))
        self.model.train()
        self.optimizer.zero_grad()
        out = self.model(self.x, None, self.shard.edge_weight)
        # The mean over the whole graph's training nodes.
        loss = score.loss_sum(out[self.used], self.y[self.used]) / self.shard.num_train
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def epoch(self, epoch: int) -> None:
        self.door.books.take()
        start = time.perf_counter()
        loss = self.step(epoch)
        row = self._row(epoch, loss, time.perf_counter() - start) | self._planned()
        if self._is_due(epoch, self.job.evaluate_every):
            self.scores = self._scores()
        self.rows.append(row | self.scores)
        if self.door.rank == 0 and self.job.events:
            with Path(self.job.events).open("a") as file:
                file.write(json.dumps(self.rows[-1]) + "\n")
        if self.job.out and self._is_due(epoch, self.job.checkpoint_every):
            self.save()

    def _planned(self) -> dict[str, Any]:
        """What the last assignment of bits predicts for this epoch; a new one is written to its own file."""
        records = self.places.assigner.records
        found: dict[str, Any] = {}
        if self._assigned is not None:
            found["predicted_s"] = self._assigned["predicted_epoch_s"]
            found["predicted_halo_bytes"] = self._assigned["predicted_bytes"]
        for record in records:
            self._plans += 1
            self._assigned = record
            found["assign_s"] = record["assign_s"] + record["trace_s"]
            if self.job.out and self.door.rank == 0:
                stamp = artifacts.stamp(seed=self.job.plan.seed, world_size=self.door.world_size)
                path = Path(self.job.out) / PLAN
                artifacts.write_json(path.with_suffix(f".{self._plans}.json"), {**stamp, **record})
        records.clear()
        return found

    def save(self) -> None:
        for name, value in self.model.state_dict().items():  # the same on every rank
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise NotFinite(
                    f"{name} is not finite after epoch {self.done}. Training has diverged: try a lower learning rate"
                )
        tensors = {f"weights/{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        tensors |= {f"places/{name}": value for name, value in self.places.state().items()}
        cost = self.places.assigner.cost
        facts = {**self.facts, "losses": self.losses, "scores": self.scores, "plans": self._plans}
        facts |= {"cost": None if cost is None else cost.to_json(), "pace": self.places.pace.to_json()}
        facts |= {"assigned": self._assigned}
        place = Place(self.job.checkpoints, self.door.rank, self.door.world_size)
        checkpoint.write(place, Checkpoint(self.done, facts, tensors))
        self.kept = f"the checkpoint after epoch {self.done} stays"

    def resume(self) -> None:
        """Go on where a checkpoint ends; at another number of ranks from its weights, with fresh messages."""
        state = resumed(self.job, self.door, self.facts)
        if self.door.rank == 0:
            self._forget_after(state)
        if state is None:  # killed before the first one
            return
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "places": {}}
        for name, tensor in state.tensors.items():
            kind, _, rest = name.partition("/")
            parts[kind][rest] = tensor
        self.model.load_state_dict(parts["weights"])
        load_optimizer(self.optimizer, parts["optimizer"])
        same = state.facts["world_size"] == self.door.world_size
        self.places.restore(state.done - 1, parts["places"] if same else {})
        self._plans = state.facts["plans"]
        if same and state.facts["cost"] is not None:
            self.places.pace.restore(state.facts["pace"])
            self._assigned = state.facts["assigned"]
            if not self.job.profile:  # the same wires, the same plans
                self.places.assigner.cost = CostModel.from_json(state.facts["cost"])
        self.losses, self.scores = list(state.facts["losses"]), dict(state.facts["scores"])
        self.kept = f"the checkpoint after epoch {state.done} stays"

    def _forget_after(self, state: Checkpoint | None) -> None:
        """Events and plans of epochs that will be run again."""
        done, plans = (0, 0) if state is None else (state.done, state.facts["plans"])
        for path in Path(self.job.out).glob(f"{Path(PLAN).stem}.*.json"):
            if int(path.name.split(".")[1]) > plans:
                path.unlink()
        if not self.job.events:
            return
        path = Path(self.job.events)
        whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        kept = [line for line in whole if json.loads(line)["epoch"] < done]
        with artifacts.new_file(path) as file:
            file.write("".join(f"{line}\n" for line in kept).encode())

    def finish(self) -> None:
        if self.job.out:
            told = score.labels(self._evaluate(), several=self.y.ndim == 2)
            predictions.write(Path(self.job.out) / PREDICTIONS, told, self.shard, self.door)

    def result(self) -> dict[str, Any]:
        peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        peaks = self._sum([peak * (rank == self.door.rank) for rank in range(self.door.world_size)])
        rows = self.rows[1:] or self.rows  # the first epoch also fetches layer 0

        def median(name: str) -> float | None:
            return statistics.median(row[name] for row in rows) if rows else None

        return {
            "method": self.job.plan.method,
            "model": self.job.model,
            "data": self.job.data,
            "workers": self.door.world_size,
            "epochs": self.job.epochs,
            "seed": self.job.plan.seed,
            "plan": self.job.plan.to_json(),
            "messages": self.messages,
            "assigned": self._assigned,
            "losses": self.losses,
            **self.scores,
            "epoch_s_median": median("seconds"),
            "bytes_per_epoch": median("bytes"),
            "float32_bytes_per_epoch": median("float32_bytes"),
            "exposed_s_per_epoch": median("exposed_s"),
            "peak_rss_bytes": int(max(peaks)),
        }

    def _is_due(self, epoch: int, every: int) -> bool:
        return (epoch + 1) % every == 0 or epoch + 1 == self.job.epochs

    def _row(self, epoch: int, loss: float, seconds: float) -> dict[str, Any]:
        """What the epoch was, summed over ranks."""
        books = self.door.books.take()
        exposed_s = sum(book.exposed_s for book in books.values())
        sent = sum(book.bytes_sent for book in books.values())
        thin = sum(book.bytes_sent for name, book in books.items() if name.endswith((".forward", ".backward")))
        values = sum(halo.take_values_sent() for halo in self.places.halos)
        broken = [float(rank == self.door.rank and not math.isfinite(loss)) for rank in range(self.door.world_size)]
        total, sent_by_all, halo, full, *flags = self._sum([loss, float(sent), float(thin), 4.0 * values, *broken])
        if not math.isfinite(total):
            ranks = ", ".join(str(rank) for rank, flag in enumerate(flags) if flag)
            raise NotFinite(
                f"the loss is {total} at epoch {epoch + 1}, by rank {ranks}, though no message was. Training has "
                "diverged: try a lower learning rate"
            )
        self.losses.append(total)
        row = {"epoch": epoch, "loss": total, "seconds": seconds, "exposed_s": exposed_s, "bytes": int(sent_by_all)}
        return row | {"halo_bytes": int(halo), "float32_bytes": int(sent_by_all - halo + full)}

    @torch.no_grad()
    def _evaluate(self) -> Tensor:
        """Exact messages."""
        self.model.eval()
        out: Tensor = self.model(self.x, None, self.shard.edge_weight)
        return out

    def _scores(self) -> dict[str, float | None]:
        out = self._evaluate()
        counts: list[float] = []
        for split in (VALIDATION, TEST):
            chosen = self.shard.split == split
            counts += score.hits_and_tries(out[chosen], self.y[chosen])
        summed = self._sum(counts)
        val, test = (hits / max(1.0, tries) for hits, tries in (summed[:2], summed[2:]))
        return {"val_score": val, "test_score": test}

    def _sum(self, values: list[float]) -> list[float]:
        told = torch.tensor(values, dtype=torch.float64)
        return [float(value) for value in self.door.all_reduce(told, channel="scores").wait()]
