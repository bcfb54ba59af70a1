"""`thinwire train`: its options, and what it prints. `train_words.py` parses each method's own options."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from thinwire import artifacts, launch, minibatch
from thinwire.bench.methods import COMPARED, METHODS, is_sampled
from thinwire.cli import limit, predictions, tables
from thinwire.cli.limit import Limit
from thinwire.cli.run_folder import plan_in, prepare_out
from thinwire.cli.spelling import nearest
from thinwire.cli.start_run import Ranks, shards_for
from thinwire.fullgraph import Exact
from thinwire.gradients.sent import check
from thinwire.launch import lab
from thinwire.links.cost import read_cost
from thinwire.prediction import Prediction, even
from thinwire.prediction.here import predict_here
from thinwire.scratch import scratch_folder
from thinwire.training import machine
from thinwire.training.checkpoint import Point
from thinwire.training.job import Job
from thinwire.training.method import Method, dashed, made, split
from thinwire.training.run import EVENTS

KINDS = ("sage", "gcn", "gat", "gin")
AUTO = "auto"
GRADIENTS = AUTO  # the codec of weights' gradients is chosen in the run
AGAINST = "against"  # in --out: the run to compare with


@dataclass
class Train:
    """Train on a graph with a part of it on each rank: on all nodes at once, or on sampled batches (salient).

    thinwire train                                     a synthetic graph, two ranks, float32 messages

    thinwire train sylvie --bits 1 --against exact     one-bit messages, beside float32

    thinwire train adaqp --out run                     bits chosen for each message; see run/plan.1.json

    thinwire train auto --hosts 4 --rate 100mbit       whichever `thinwire plan` recommends there

    thinwire train salient --cache 0.16                sampled batches, partitioned features, a cache

    thinwire train --data shards --hosts 4 --rate 100mbit  on emulated hosts (root)

    thinwire train --out run --epochs 200              keeps checkpoints; goes on with --resume

    torchrun --nproc-per-node 2 -m thinwire train      as part of a torchrun job
    """

    joins: ClassVar[bool] = True
    # None (auto): the method that a prediction recommends.
    method: Annotated[Method | None, tyro.conf.Fixed, tyro.conf.Suppress] = field(default_factory=Exact)
    data: str = "synthetic"
    """A graph by name (synthetic:..., planetoid:cora, graph.npz), or a folder that `thinwire partition` has written."""
    model: Annotated[str, tyro.conf.arg(metavar="sage|gcn|gat|gin|MODULE:FUNCTION")] = "sage"
    """Kind of layers; gcn uses edge weights, the others ignore weights and features of edges. Or your own function,
    package.module:function: called with (num_features, num_classes), it returns a model whose forward takes x,
    edge_index and, optionally, edge_weight and edge_attr."""
    check: bool = True
    """Try your own model on a tiny graph first, whole and in parts, and refuse it if the results differ."""
    layers: int = 3
    """Number of layers."""
    hidden: int = 128
    """Width of hidden layers."""
    dropout: float = 0.0
    """Share of values dropped between layers."""
    norm: Literal["layer", "batch", "none"] = "layer"
    """Normalisation between layers."""
    mode: Literal["fullgraph", "minibatch"] | None = None
    """All nodes at once, or sampled batches. (by the method)"""
    against: Annotated[str, tyro.conf.arg(metavar="METHOD")] = ""
    """Train with this method first, on the same shards, and show both. Give options with it: "sylvie --bits 2"."""
    profile: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """adaqp, auto: file that `thinwire profile` wrote, instead of measuring the links at the start."""
    epochs: int = 60
    """Number of epochs."""
    lr: float = 0.01
    """Learning rate."""
    optimizer: Literal["auto", "adam", "qhadam"] = "auto"
    """auto: qhadam if the method's messages may be stale, which Adam's momentum does not tolerate; else adam."""
    decay: Literal["none", "cosine"] = "none"
    """Learning rate over the epochs: constant, or falling to 0 at the last epoch along a cosine."""
    gradients: Annotated[str, tyro.conf.arg(metavar="CODEC")] = GRADIENTS
    """How weights' gradients travel: none (float32), or a codec that remembers what it loses, like topk:0.01, sign,
    bfloat16 or uniform:4. auto: chosen after a few epochs, none where nothing waits for them; with exact, none."""
    workers: int = 2
    """Number of ranks on this machine."""
    hosts: int = 0
    """Number of emulated hosts with one rank each, instead of --workers."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each emulated host's link, both ways."""
    seed: int = 0
    """Seed of weights, partition, dropout and rounding."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder to keep plan, events, checkpoints and predictions in."""
    checkpoint_every: int = 10
    """With --out: epochs between checkpoints."""
    checkpoint_steps: int = 1000
    """salient, with --out: steps between checkpoints within an epoch; 0: only at epochs' ends."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Go on from the last checkpoint in --out."""
    resume_epoch: Annotated[str, tyro.conf.arg(metavar="E[:STEP]")] = ""
    """With --resume: go on from the checkpoint after E epochs instead, or after E epochs and STEP steps."""
    limit: Limit = limit.USUAL
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file."""

    def verify(self) -> None:
        if self.json is not None:
            artifacts.check_writable(self.json)
        for name in ("layers", "hidden", "epochs", "workers", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give 1 or more")
        if self.checkpoint_steps < 0:
            raise ValueError(f"--checkpoint-steps is {self.checkpoint_steps}; give 0 (epochs' ends only) or more")
        if self.resume_epoch:
            Point.parse(self.resume_epoch)
        limit.check(self.limit)
        check(self.gradients)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout is {self.dropout}; give 0 or more, below 1")
        if not self.lr > 0:
            raise ValueError(f"--lr is {self.lr}; give more than 0")
        if self.hosts < 0:
            raise ValueError(f"--hosts is {self.hosts}; give 1 or more, or leave it out for ranks on this machine")
        lab.parse_rate(self.rate)
        sampled = self.method is not None and self.method.name in minibatch.METHODS
        if self.mode is not None and (self.mode == "minibatch") != sampled:
            raise ValueError(f"--mode {self.mode} and method {self._name()} do not go together; leave --mode out")
        for method in self._methods():
            method.for_layers(self.layers)
        self._expect_used()
        read_cost(str(self.profile or ""))
        rank_spec = launch.rank_spec_from_torchrun()
        if self.hosts and rank_spec is not None:
            raise ValueError("--hosts starts ranks of its own; give it without torchrun")
        if self.hosts and (problem := lab.missing()):
            raise ValueError(problem)
        if rank_spec is None or rank_spec.rank == 0:
            prepare_out(self.out, self.data, resume=self.resume, resume_epoch=self.resume_epoch)

    def run(self, console: Console) -> None:
        ranks = Ranks(self.workers, self.hosts, self.rate if self.hosts else "")
        with scratch_folder("train") as folder:
            shards = shards_for(self.data, ranks, self.seed, self.out, folder)
            prediction = self._settle_method(shards, console) if self.method is None else {}
            job = replace(self._job(shards), launch=ranks.to_json(), prediction=prediction)
            other = None
            if self.against:
                beside = (self.out or folder) / AGAINST
                other = ranks.train(self._beside(job, beside), beside / EVENTS, console)
            result = ranks.train(job, (self.out or folder) / EVENTS, console)
        if console.quiet:  # in a torchrun job, only rank 0 prints
            return
        console.print(tables.trained(result, other))
        if other and ranks.to_json()["kind"] == "local":
            console.print(
                "Ranks share this machine, one method after the other: bytes and scores count, seconds hardly. What a "
                "network would change: thinwire plan --hosts 4 --rate 100mbit",
                highlight=False,
            )
        if result.get("assigned"):
            console.print(tables.assigned(result["assigned"]))
        if self.out is not None:
            console.print(
                f"kept in {self.out}: plan, events, checkpoints, predictions",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            folders = f"{self.out} {self.out / AGAINST}" if other else str(self.out)
            console.print(f"look at it: thinwire report {folders}", highlight=False, markup=False, soft_wrap=True)
        if self.json is not None:
            content = {**artifacts.stamp(seed=self.seed, world_size=result["workers"]), **result}
            artifacts.write_json(self.json, content | ({"against": other} if other else {}))
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)

    def _beside(self, job: Job[Any], folder: Path) -> Job[Any]:
        """The job to compare with. If this run is kept, that one is kept too, in `folder`."""
        # Ranks agree before the folder is made: then rank 0 has checked --out as it was, and it may change.
        resume = launch.from_first_rank((folder / EVENTS).exists()) and job.resume
        folder.mkdir(parents=True, exist_ok=True)
        out = str(folder.resolve()) if self.out is not None else ""
        other = self._other()
        gradients = AUTO if other.gentleness == 0 else job.gradients  # beside exact means beside float32
        changed = replace(job, method=other, gradients=gradients, out=out, resume=resume, prediction={})
        return changed.for_layers()

    def _name(self) -> str:
        return AUTO if self.method is None else self.method.name

    def _other(self) -> Method:
        """The method to compare with."""
        return method_of(self.against)

    def _methods(self) -> list[Method]:
        """The methods known so far: the one chosen, unless it is auto, and the one to compare with."""
        return [*([] if self.method is None else [self.method]), *([self._other()] if self.against else [])]

    def _expect_used(self) -> None:
        """Raise if an option would have no effect."""
        methods = self._methods()
        sampled = any(method.name in minibatch.METHODS for method in methods)
        if ":" in self.model:
            if self.method is None or sampled:
                whole = ", ".join(name for name in METHODS if name not in minibatch.METHODS)
                raise ValueError(f"--model {self.model}: your own goes with {whole}")
            for name in ("layers", "hidden", "dropout", "norm"):
                if getattr(self, name) != getattr(Train, name):
                    raise ValueError(f"--{name} is of thinwire's own models; {self.model} says for itself")
        elif self.model not in KINDS:
            known = ", ".join(KINDS)
            raise ValueError(
                f"--model {self.model}; give one of {known}, or package.module:function.{nearest(self.model, KINDS)}"
            )
        heeded = {name for method in methods for name in method.heeds} | ({"profile"} if self.method is None else set())
        for kind in METHODS.values():
            for name in kind.heeds:
                if name not in heeded and getattr(self, name) != getattr(Train, name):
                    raise ValueError(f"{dashed(name)} goes with {kind.name}; leave it out, or train by {kind.name}")
        if sampled and self.norm == "batch":
            raise ValueError("--norm batch: a batch's statistics differ on every rank; with salient give layer or none")
        if not self.hosts and self.rate != Train.rate:
            raise ValueError(f"--rate {self.rate} is of emulated hosts; say how many with --hosts")
        if self.hosts and self.workers != Train.workers:
            raise ValueError("--hosts has one rank each; leave --workers out")
        if self.out is None and self.resume_epoch:
            raise ValueError("--resume-epoch goes with --resume and --out")

    def _settle_method(self, shards: str, console: Console) -> dict[str, Any]:
        """Set the method for auto: that of the run to resume, or the one that a prediction recommends.

        Returns the prediction, for plan.json.
        """
        kept = launch.from_first_rank(plan_in(self.out)) if self.resume else None
        if kept is not None:
            self.method = method_of(str(kept.get("method") or kept["plan"]["method"]))
            return dict(kept.get("prediction", {}))
        with Console(stderr=True, quiet=console.quiet).status(
            "a few epochs of each method: which is the fastest here?"
        ):
            prediction = self._predicted(shards)
        self.method = method_of(prediction.recommended)
        console.print(predictions.table(prediction, f"{AUTO}: {prediction.recommended}"))
        return prediction.to_json()

    def _predicted(self, shards: str) -> Prediction:
        names = ("data", "model", "layers", "hidden", "dropout", "norm", "gradients")
        cost = read_cost(str(self.profile or ""))
        return predict_here(
            shards,
            {name: getattr(self, name) for name in names},
            ranks=self.hosts or self.workers,
            cost=cost or (even(self.hosts, lab.parse_rate(self.rate)) if self.hosts else None),
            cores=machine.shared_cores(),
            methods=[words for words in COMPARED if not is_sampled(words)],
            seed=self.seed,
            limit_s=self.limit,
        )

    def _job(self, shards: str) -> Job[Any]:
        assert self.method is not None
        return Job(
            method=self.method,
            data=self.data,
            shards=shards,
            model=self.model,
            layers=self.layers,
            hidden=self.hidden,
            dropout=self.dropout,
            norm=self.norm,
            lr=self.lr,
            optimizer=self.optimizer,
            decay=self.decay,
            gradients=self.gradients,
            epochs=self.epochs,
            seed=self.seed,
            profile="" if self.profile is None else str(self.profile.resolve()),
            out="" if self.out is None else str(self.out.resolve()),
            checkpoint_every=self.checkpoint_every,
            checkpoint_steps=self.checkpoint_steps,
            check=self.check,
            resume=self.resume,
            resume_epoch=self.resume_epoch,
            limit_s=self.limit,
        ).for_layers()


def method_named(name: str) -> type[Method]:
    """The class of this method; the error for an unknown name suggests the nearest."""
    if name not in METHODS:
        known = ", ".join((*METHODS, AUTO))
        raise ValueError(f"there is no method {name!r}; give one of {known}.{nearest(name, (*METHODS, AUTO))}")
    return METHODS[name]


def method_of(words: str) -> Method:
    """The method that these words describe."""
    name, options = split(words)
    return made(method_named(name), options, words)
