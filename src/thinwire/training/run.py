"""A run of `thinwire train` on one rank: epochs, events, checkpoints, scores. A technique says what an epoch is."""

import json
import math
import resource
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire import artifacts
from thinwire.gradients import columns
from thinwire.graphs import TEST, VALIDATION, Manifest, Shard
from thinwire.links import Door
from thinwire.links.books import ChannelBook
from thinwire.links.event_log import EventLog
from thinwire.training import checkpoint, choosing, details, machine, optimizers, predictions, score
from thinwire.training.checkpoint import Checkpoint, Point, RankFiles
from thinwire.training.finite import NotFinite, expect_finite_weights
from thinwire.training.gradients import GradientSum
from thinwire.training.job import Job
from thinwire.training.saved import load_optimizer, optimizer_tensors, resumed
from thinwire.training.window import USUAL, Window

PLAN = "plan.json"
EVENTS = "events.jsonl"
RESULT, FAILED = "result.json", "failed.json"  # how the run ended
PREDICTIONS = "predictions.npz"
MEASURING = (choosing.GATHERED, columns.CHANNEL)


class Run(ABC):
    """One rank's part of a run."""

    gradients: GradientSum  # of all weights

    def __init__(self, job: Job[Any], shard: Shard, door: Door, manifest: Manifest, model: nn.Module) -> None:
        self.job, self.shard, self.door, self.model = job, shard, door, model
        self.facts = {"job": job.identity(), "world_size": door.world_size, "data": manifest.checksum}
        self.y = shard.y.float() if shard.y.ndim == 2 else shard.y.long()
        self.optimizer = optimizers.build(job, self.model.parameters())
        self.losses: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.scores: dict[str, float | None] = {"val_score": None, "test_score": None}  # not evaluated yet
        self.kept = "no checkpoint was kept"
        self.plans = 0  # new plans since the first
        self.horizon = job.epochs  # up to this epoch a technique may work ahead

    @abstractmethod
    def step(self, epoch: int) -> float:
        """Train one epoch, and return this shard's share of the loss."""

    @abstractmethod
    def evaluate(self) -> Tensor:
        """The model's outputs for this shard's nodes."""

    @abstractmethod
    def counted(self, books: Mapping[str, ChannelBook]) -> dict[str, float]:
        """This rank's counts of the epoch; the epoch's event has their sums over ranks."""

    def planned(self) -> dict[str, Any]:
        """What was predicted for the epoch, for its event."""
        return {}

    def first_plan(self) -> dict[str, Any]:
        """What plan.json holds besides the job."""
        return {}

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The facts and tensors that a checkpoint needs, beyond weights and optimizer, to resume bit for bit."""
        return {}, {}

    def restore(self, state: Checkpoint, tensors: dict[str, Tensor], *, same: bool) -> None:  # noqa: B027 (or nothing)
        """Restore what `state` gave; `same`: this run has as many ranks as the one that saved it."""

    def settle(self) -> None:  # noqa: B027 (or nothing)
        """Wait for transfers that are still under way."""

    def window(self) -> Window:
        """The epochs to record for a prediction; they represent the whole run."""
        return USUAL

    def begin_at(self, epoch: int) -> None:  # noqa: B027 (or nothing)
        """Start at this epoch as if the earlier ones were done. For a recording."""

    def choosing_s(self) -> float:
        """Mean seconds an epoch that went into choosing what to send."""
        return 0.0

    @property
    def done(self) -> int:
        """The number of epochs done."""
        return len(self.losses)

    def train(self) -> dict[str, Any]:
        """Train from the start, or from a checkpoint, to the end, and return the result."""
        if self.job.resume:
            self.resume()
        if self.job.resume and self.done >= self.job.epochs:
            return self._as_kept()
        if self.job.out and self.door.rank == 0:
            self.write_plan(Path(self.job.out) / PLAN, self._whole_plan())
        try:
            for epoch in range(self.done, self.job.epochs):
                self.epoch(epoch)
        except NotFinite as error:
            raise NotFinite(f"{error}; {self.kept}") from None
        self.finish()
        result = self.result()
        if self.job.out and self.door.rank == 0:
            self.write_plan(Path(self.job.out) / RESULT, result)
        return result

    def _as_kept(self) -> dict[str, Any]:
        """The result of a run with nothing left to do; its files stay as they are."""
        result, kept = self.result(), Path(self.job.out) / RESULT
        return dict(json.loads(kept.read_text())) if kept.exists() else result

    def _whole_plan(self) -> dict[str, Any]:
        job = self.job
        content = {
            "data": job.data,
            "method": job.method.words(),
            "gradients": job.gradients_codec,
            **job.identity(),
            "epochs": job.epochs,
            "machine": machine.facts(),
        }
        content |= {name: facts for name in ("launch", "prediction") if (facts := getattr(job, name))}
        return {**content, **self.first_plan()}

    def write_plan(self, path: Path, content: dict[str, Any]) -> None:
        stamp = artifacts.stamp(seed=self.job.seed, world_size=self.door.world_size)
        artifacts.write_json(path, {**stamp, **content})

    def replan(self, content: dict[str, Any]) -> None:
        """Count a new plan, and write it to plan.N.json."""
        self.plans += 1
        if self.job.out and self.door.rank == 0:
            self.write_plan((Path(self.job.out) / PLAN).with_suffix(f".{self.plans}.json"), content)

    def about_gradients(self) -> dict[str, Any]:
        """By which codec weights' gradients are sent, for the epoch's event. A new choice is written to a plan file."""
        sums = self.gradients
        for record in sums.records:
            self.replan(record)
        sums.records.clear()
        share = sums.chooser.share if sums.chooser is not None else None
        return {"gradients": sums.codec} | ({} if share is None else {"gradients_share": share})

    def epoch(self, epoch: int) -> None:
        self.door.books.take()
        detailed = bool(self.job.events) and (epoch in details.TRACED or self._is_due(epoch, self.job.evaluate_every))
        if self.job.events and epoch == details.TRACED[0] - 1:
            self.door.books.event_log = EventLog()
        optimizers.set_rate(self.optimizer, optimizers.rate(self.job, epoch))
        start = time.perf_counter()
        loss = self.step(epoch)
        seconds = time.perf_counter() - start
        books = self.door.books.take()
        # What was sent once, to choose how gradients travel, is no part of what an epoch sends.
        measuring = sum(books.pop(channel).bytes_sent for channel in MEASURING if channel in books)
        row = self._row(epoch, loss, seconds, books, measuring) | self.planned()
        if detailed:
            event_log = self.door.books.event_log if epoch in details.TRACED else None
            row |= details.gathered(self.door, start, seconds, books, event_log)
        if epoch == details.TRACED[-1]:
            self.door.books.event_log = None
        if self._is_due(epoch, self.job.evaluate_every):
            self.scores = self._scores()
        self.rows.append(row | self.scores)
        if self.door.rank == 0 and self.job.events:
            with Path(self.job.events).open("a") as file:
                file.write(json.dumps(self.rows[-1]) + "\n")
        if self.job.out and self._is_due(epoch, self.job.checkpoint_every):
            self.save()

    def save(self, steps: int = 0) -> None:
        """Write a checkpoint; `steps` are those done in the epoch under way, 0 between epochs."""
        point = Point(self.done, steps)
        expect_finite_weights(self.model, self.done)  # the same on every rank
        own_facts, own_tensors = self.state()
        tensors = {f"weights/{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        tensors |= {f"own/{name}": value for name, value in own_tensors.items()}
        facts = {**self.facts, "losses": self.losses, "scores": self.scores, "plans": self.plans, **own_facts}
        files = RankFiles(self.job.checkpoints, self.door.rank, self.door.world_size)
        checkpoint.write(files, Checkpoint(point, facts, tensors))
        self.kept = f"the checkpoint after {point} stays"

    def resume(self) -> None:
        """Go on from a checkpoint. With another number of ranks, ranks' own state in it is not restored."""
        state = resumed(self.job, self.door, self.facts)
        if self.door.rank == 0:
            self._forget_after(state)
        if state is None:  # killed before the first one
            return
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "own": {}}
        for name, tensor in state.tensors.items():
            kind, _, rest = name.partition("/")
            parts[kind][rest] = tensor
        self.model.load_state_dict(parts["weights"])
        load_optimizer(self.optimizer, parts["optimizer"])
        self.restore(state, parts["own"], same=state.facts["world_size"] == self.door.world_size)
        self.plans = state.facts["plans"]
        self.losses, self.scores = list(state.facts["losses"]), dict(state.facts["scores"])
        self.kept = f"the checkpoint after {state.point} stays"

    def _forget_after(self, state: Checkpoint | None) -> None:
        """Delete events, plans and results of epochs that will be run again."""
        done, plans = (0, 0) if state is None else (state.point.epochs, state.facts["plans"])
        for path in Path(self.job.out).glob(f"{Path(PLAN).stem}.*.json"):
            if int(path.name.split(".")[1]) > plans:
                path.unlink()
        if done < self.job.epochs:
            for name in (RESULT, FAILED):
                (Path(self.job.out) / name).unlink(missing_ok=True)
        if not self.job.events:
            return
        path = Path(self.job.events)
        whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        kept = [line for line in whole if json.loads(line)["epoch"] < done]
        with artifacts.new_file(path) as file:
            file.write("".join(f"{line}\n" for line in kept).encode())

    def finish(self) -> None:
        if self.job.out:
            labels = score.labels(self.evaluate(), several=self.y.ndim == 2)
            predictions.write(Path(self.job.out) / PREDICTIONS, labels, self.shard, self.door)

    def result(self) -> dict[str, Any]:
        peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        peaks = self.sum_over_ranks([peak * (rank == self.door.rank) for rank in range(self.door.world_size)])
        # Without the first epoch, which may fetch rows that later ones reuse, and the last, where a pipeline fetches
        # nothing ahead.
        rows = self.rows[1:-1] or self.rows[1:] or self.rows

        def median(name: str) -> float | None:
            return statistics.median(row[name] for row in rows) if rows else None

        return {
            "method": self.job.method.name,
            "model": self.job.model,
            "data": self.job.data,
            "workers": self.door.world_size,
            "epochs": self.job.epochs,
            "seed": self.job.seed,
            "optimizer": self.job.optimizer_name,
            "plan": self.job.method.to_json(),
            "losses": self.losses,
            **self.scores,
            "epoch_s_median": median("seconds"),
            "bytes_per_epoch": median("bytes"),
            "float32_bytes_per_epoch": median("float32_bytes"),
            "exposed_s_per_epoch": median("exposed_s"),
            "peak_rss_bytes": int(max(peaks)),
        }

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        sums = torch.tensor(values, dtype=torch.float64)
        return [float(value) for value in self.door.all_reduce(sums, channel="scores").wait()]

    def _is_due(self, epoch: int, interval: int) -> bool:
        return (epoch + 1) % interval == 0 or epoch + 1 == self.job.epochs

    def _row(
        self, epoch: int, loss: float, seconds: float, books: Mapping[str, ChannelBook], measuring: int
    ) -> dict[str, Any]:
        """The epoch's event: loss and counts as sums over ranks, times of this rank."""
        exposed_s = sum(book.exposed_s for book in books.values())
        counts = {"bytes": float(sum(book.bytes_sent for book in books.values())), **self.counted(books)}
        counts["measuring_bytes"] = measuring
        broken = [float(rank == self.door.rank and not math.isfinite(loss)) for rank in range(self.door.world_size)]
        total, *sums = self.sum_over_ranks([loss, *counts.values(), *broken])
        if not math.isfinite(total):
            ranks = ", ".join(str(rank) for rank, flag in enumerate(sums[len(counts) :]) if flag)
            raise NotFinite(
                f"the loss is {total} at epoch {epoch + 1}, by rank {ranks}, though no message was. Training has "
                "diverged: try a lower learning rate"
            )
        self.losses.append(total)
        row = {"epoch": epoch, "loss": total, "seconds": seconds, "exposed_s": exposed_s}
        summed = {name: int(value) for name, value in zip(counts, sums, strict=False)}
        return row | {name: size for name, size in summed.items() if size or name != "measuring_bytes"}

    def _scores(self) -> dict[str, float | None]:
        out = self.evaluate()
        counts: list[float] = []
        for split in (VALIDATION, TEST):
            chosen = self.shard.split == split
            counts += [float(chosen.sum()), *score.hits_and_tries(out[chosen], self.y[chosen])]
        summed = self.sum_over_ranks(counts)
        val, test = (score.share(*split_sums) for split_sums in (summed[:3], summed[3:]))
        return {"val_score": val, "test_score": test}
