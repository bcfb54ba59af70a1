"""`thinwire train`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from thinwire import artifacts, fullgraph, graphs, launch, minibatch
from thinwire.cli import limit, predictions, tables
from thinwire.cli.choices import Rows
from thinwire.cli.limit import Limit
from thinwire.cli.spelling import nearest
from thinwire.cli.watch import watched
from thinwire.fullgraph.rank import work as train_on_all
from thinwire.launch import Lab, lab
from thinwire.links.cost import read_cost
from thinwire.minibatch.rank import work as train_on_batches
from thinwire.prediction import METHODS, Prediction, even
from thinwire.prediction.here import predict_here
from thinwire.scratch import scratch_folder
from thinwire.training import machine
from thinwire.training.checkpoint import Point
from thinwire.training.job import Job
from thinwire.training.run import EVENTS, FAILED, PLAN

Method = Literal["exact", "pipe", "sylvie", "adaqp", "salient"]
KINDS = ("sage", "gcn", "gat", "gin")
AUTO = "auto"
AGAINST = "against"  # in --out: the run to compare with
Policy = Literal["vip", "degree", "halo", "paths", "simulation", "oracle", "none"]


@dataclass
class Train:
    """Train on a graph, a part of it on each rank: on all nodes at once, or (--method salient) on sampled batches.

    thinwire train                                     a synthetic graph, two ranks

    thinwire train --method sylvie --against exact     one-bit messages, beside float32

    thinwire train --method adaqp --out run            bits chosen for each message; see run/plan.1.json

    thinwire train --method auto --hosts 4 --rate 100mbit  whichever `thinwire plan` recommends there

    thinwire train --method salient --cache 0.16       sampled batches, features in parts, a cache

    thinwire train --data shards --hosts 4 --rate 100mbit  on emulated hosts (root)

    thinwire train --out run --epochs 200              keeps checkpoints; goes on with --resume

    torchrun --nproc-per-node 2 -m thinwire train      as part of a job of torchrun's
    """

    joins: ClassVar[bool] = True
    data: str = "synthetic"
    """A graph by name (synthetic:..., planetoid:cora, graph.npz), or a folder that `thinwire partition` has written."""
    model: Annotated[str, tyro.conf.arg(metavar="sage|gcn|gat|gin|MODULE:FUNCTION")] = "sage"
    """Kind of layers; gcn weighs by edge weights, the others leave weights and features of edges aside. Or a function
    of your own, package.module:function, that makes a model of (num_features, num_classes), whose forward takes x,
    edge_index, and edge_weight and edge_attr if it likes."""
    check: bool = True
    """A model of your own is tried first, on a tiny graph, whole and in parts, and refused if it is not the same."""
    layers: int = 3
    """How many."""
    hidden: int = 128
    """How wide."""
    dropout: float = 0.0
    """Share of values dropped between them."""
    norm: Literal["layer", "batch", "none"] = "layer"
    """What stands between them."""
    mode: Literal["fullgraph", "minibatch"] | None = None
    """All nodes at once, or sampled batches. (as the method says)"""
    method: Method | Literal["auto"] | None = None
    """What crosses the wire, and when; auto tries all that train on the whole graph for a few epochs, and takes the
    fastest. (exact; salient where --mode is minibatch)"""
    against: Method | None = None
    """Train by this method first, on the same shards, and show both."""
    bits: int = 1
    """sylvie: bits a value."""
    staleness: Literal[0, 1] = 1
    """sylvie: 0 synchronous, 1 an epoch stale."""
    sync_every: int | None = None
    """Every so many-th epoch is synchronous, or (adaqp) sends every row; 0 never. (sylvie, adaqp: 10, pipe: 0)"""
    bits_choice: Annotated[str, tyro.conf.arg(metavar="BITS")] = "0,1,2,4,8,16,32"
    """adaqp: what to choose a message's bits from; 0 is not sent, the receiver keeps its copy."""
    assign: Literal["trade", "hide", "random"] = "trade"
    """adaqp: variance against time; or the most bits that hide behind computation; or any."""
    assign_every: int = 50
    """adaqp: epochs between choices."""
    balance: float = 0.5
    """adaqp: 1 counts variance alone, 0 time alone."""
    weigh: Literal["squares", "published", "gradient"] = "squares"
    """adaqp: a message counts by its aggregation weights; or as in the published code; or by its gradient."""
    only: Literal["", "quantize", "overlap"] = ""
    """adaqp: without overlap, or without few bits. (both)"""
    profile: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """adaqp: what `thinwire profile` wrote, instead of a first look at the wires."""
    batch: int = 1024
    """salient: seeds of a rank in a step, at most."""
    fanouts: Annotated[str, tyro.conf.arg(metavar="LIST")] = ""
    """salient: neighbours drawn by each hop, from the seeds outwards, a number for each layer; -1 all. (15,10,5)"""
    cache: float = 0.16
    """salient: replication factor: rows of others that a rank holds, as a share of N / ranks."""
    cache_policy: Policy = "vip"
    """salient: which rows; oracle samples the whole run beforehand."""
    rows: Rows = "auto"
    """salient: how rows of features travel. (as they are stored)"""
    depth: int = 4
    """salient: batches that are on their way while another is trained on; 0 is no pipeline."""
    sampler_threads: int = 1
    """salient: threads that sample ahead."""
    epochs: int = 60
    """How many."""
    lr: float = 0.01
    """Learning rate."""
    optimizer: Literal["auto", "adam", "qhadam"] = "auto"
    """auto: adam, and qhadam where messages are stale, which Adam's momentum does not bear."""
    decay: Literal["none", "cosine"] = "none"
    """Of the learning rate: constant, or falling to 0 at the last epoch along a cosine."""
    workers: int = 2
    """Ranks on this machine."""
    hosts: int = 0
    """Emulated hosts instead, one rank each."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each emulated host's link, both ways."""
    seed: int = 0
    """Seed of weights, partition, dropout and rounding."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Keep plan, events, checkpoints and predictions here."""
    checkpoint_every: int = 10
    """With --out: epochs between checkpoints."""
    checkpoint_steps: int = 1000
    """salient, with --out: steps between checkpoints within an epoch; 0 at epochs' ends only."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Go on from the last checkpoint in --out."""
    resume_epoch: Annotated[str, tyro.conf.arg(metavar="E[:STEP]")] = ""
    """With --resume: from the checkpoint after this epoch instead, or after so many steps of the next."""
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
        if not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout is {self.dropout}; give 0 or more, below 1")
        if not self.lr > 0:
            raise ValueError(f"--lr is {self.lr}; give more than 0")
        if self.hosts < 0:
            raise ValueError(f"--hosts is {self.hosts}; give 1 or more, or leave it out for ranks on this machine")
        lab.parse_rate(self.rate)
        if self.method is None:
            self.method = "salient" if self.mode == "minibatch" else "exact"
        if self.mode is not None and (self.mode == "minibatch") != (self.method == "salient"):
            raise ValueError(f"--mode {self.mode} and --method {self.method} do not go together; leave --mode out")
        if self.method != AUTO:
            self._plan(str(self.method))
        if self.against is not None:
            self._plan(self.against)
        self._expect_used()
        read_cost(str(self.profile or ""))
        rank_spec = launch.rank_spec_from_torchrun()
        if self.hosts and rank_spec is not None:
            raise ValueError("--hosts starts ranks of its own; give it without torchrun")
        if self.hosts and (problem := lab.missing()):
            raise ValueError(problem)
        if rank_spec is None or rank_spec.rank == 0:
            self._verify_out()

    def run(self, console: Console) -> None:
        with scratch_folder("train") as folder:
            shards = self._own_shards(folder)
            prediction = self._settle_method(shards, console) if self.method == AUTO else {}
            job = replace(self._job(shards), prediction=prediction)
            other = None
            if self.against is not None:
                beside = (self.out or folder) / AGAINST
                other = self._train(self._beside(job, beside), console, beside / EVENTS)
            result = self._train(job, console, (self.out or folder) / EVENTS)
        if console.quiet:  # one rank of many: the first one tells
            return
        console.print(tables.trained(result, other))
        if other and self._launch()["kind"] == "local":
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
            both = f"{self.out} {self.out / AGAINST}" if other else str(self.out)
            console.print(f"look at it: thinwire report {both}", highlight=False, markup=False, soft_wrap=True)
        if self.json is not None:
            content = {**artifacts.stamp(seed=self.seed, world_size=result["workers"]), **result}
            artifacts.write_json(self.json, content | ({"against": other} if other else {}))
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)

    def _beside(self, job: Job[Any], folder: Path) -> Job[Any]:
        """The run to compare with; kept, if this one is, in a folder of its own."""
        # All agree first: then the first rank has seen that --out was as it should be, and something may be made in it.
        resume = launch.from_first_rank((folder / EVENTS).exists()) and job.resume
        folder.mkdir(parents=True, exist_ok=True)
        plan, out = self._plan(str(self.against)), str(folder.resolve()) if self.out is not None else ""
        return replace(job, plan=plan, out=out, resume=resume, prediction={})

    def _expect_used(self) -> None:
        """Refuse what would have no effect."""
        methods = {self.method, self.against}
        if ":" in self.model:
            if methods & {AUTO, "salient"}:
                raise ValueError(f"--model {self.model}: your own goes with --method exact, pipe, sylvie or adaqp")
            for name in ("layers", "hidden", "dropout", "norm"):
                if getattr(self, name) != getattr(Train, name):
                    raise ValueError(f"--{name} is of thinwire's own models; {self.model} says for itself")
        elif self.model not in KINDS:
            known = ", ".join(KINDS)
            raise ValueError(
                f"--model {self.model}; give one of {known}, or package.module:function.{nearest(self.model, KINDS)}"
            )
        few = {"bits": "sylvie", "staleness": "sylvie", "bits_choice": "adaqp", "assign": "adaqp", "balance": "adaqp"}
        few |= {"assign_every": "adaqp", "weigh": "adaqp", "only": "adaqp"}
        if self.method != AUTO:
            few["profile"] = "adaqp"
        elif self.sync_every is not None:
            raise ValueError("--method auto compares methods as they usually are; leave --sync-every out, or name one")
        sampling = ("batch", "fanouts", "cache", "cache_policy", "rows", "depth", "sampler_threads", "checkpoint_steps")
        few |= dict.fromkeys(sampling, "salient")
        for name, method in few.items():
            if method not in methods and getattr(self, name) != getattr(Train, name):
                raise ValueError(f"--{name.replace('_', '-')} goes with --method {method}")
        if self.sync_every is not None and methods <= {"exact", "salient", None}:
            raise ValueError("--sync-every goes with --method sylvie, adaqp or pipe; others are always synchronous")
        if "salient" in methods and self.norm == "batch":
            raise ValueError("--norm batch: a batch's statistics differ on every rank; with salient give layer or none")
        if not self.hosts and self.rate != Train.rate:
            raise ValueError(f"--rate {self.rate} is of emulated hosts; say how many with --hosts")
        if self.hosts and self.workers != Train.workers:
            raise ValueError("--hosts has one rank each; leave --workers out")
        if self.out is None and self.resume_epoch:
            raise ValueError("--resume-epoch goes with --resume and --out")

    def _verify_out(self) -> None:
        if self.out is None:
            if self.resume:
                raise ValueError("--resume goes on from checkpoints in --out; say which folder")
            return
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"{self.out} is no folder; name another")
        if self.resume and not (self.out / EVENTS).exists():
            raise ValueError(f"{self.out} holds no run; give the folder of one, or start without --resume")
        if self.resume and (plan := self.out / PLAN).exists():
            trained_on = json.loads(plan.read_text()).get("data")
            if trained_on != self.data and not graphs.is_shard_folder(Path(self.data)):
                raise ValueError(f"the run in {self.out} was trained on {trained_on}; give --data {trained_on}")
        if not self.resume and self.out.is_dir() and any(self.out.iterdir()):
            raise ValueError(f"{self.out} is not empty; give --resume to go on with a run in it, or another folder")
        if self.resume_epoch and not self.resume:
            raise ValueError("--resume-epoch goes with --resume")
        self.out.mkdir(parents=True, exist_ok=True)
        artifacts.check_writable(self.out / PLAN)
        (self.out / EVENTS).touch()

    def _plan(self, method: str) -> fullgraph.Plan | minibatch.Plan:
        if method == "salient":
            return self._sampling_plan()
        return fullgraph.Plan(
            method=method,
            bits=self.bits,
            staleness=self.staleness,
            sync_every=self.sync_every,
            seed=self.seed,
            bits_choice=fullgraph.Plan.parse_bits(self.bits_choice),
            assign=self.assign,
            assign_every=self.assign_every,
            balance=self.balance,
            weigh=self.weigh,
            only=self.only,
        )

    def _sampling_plan(self) -> minibatch.Plan:
        return minibatch.Plan(
            batch=self.batch,
            fanouts=minibatch.Plan.fanouts_for(self.layers, self.fanouts),
            cache=self.cache,
            cache_policy=self.cache_policy,
            rows=self.rows,
            depth=self.depth,
            threads=self.sampler_threads,
            seed=self.seed,
        )

    def _own_shards(self, folder: Path) -> str:
        """In a job of torchrun's, each machine sees to its own: none are named."""
        joins = launch.rank_spec_from_torchrun() is not None and not graphs.is_shard_folder(Path(self.data))
        return "" if joins else str(self._shards(folder))

    def _settle_method(self, shards: str, console: Console) -> dict[str, Any]:
        """Turn auto into a method: that of the run which goes on, or the one that is predicted to be the fastest."""
        kept = launch.from_first_rank(self._kept_plan()) if self.resume else None
        if kept is not None:
            self.method = kept["plan"]["method"]
            self.staleness = kept["plan"].get("staleness", self.staleness)
            return dict(kept.get("prediction", {}))
        with Console(stderr=True, quiet=console.quiet).status(
            "a few epochs of each method: which is the fastest here?"
        ):
            found = self._predicted(shards)
        name, *words = found.recommended.split()
        self.method = name  # type: ignore[assignment]
        if words:
            self.staleness = int(words[1])  # type: ignore[assignment]
        console.print(predictions.table(found, f"--method auto: {found.recommended}"))
        return found.to_json()

    def _kept_plan(self) -> dict[str, Any] | None:
        """Of the run that goes on, where this machine has it."""
        path = Path(self.out or "") / PLAN
        return dict(json.loads(path.read_text())) if path.exists() else None

    def _predicted(self, shards: str) -> Prediction:
        names = ("data", "model", "layers", "hidden", "dropout", "norm")
        cost = read_cost(str(self.profile or ""))
        return predict_here(
            shards,
            {name: getattr(self, name) for name in names},
            ranks=self.hosts or self.workers,
            cost=cost or (even(self.hosts, lab.parse_rate(self.rate)) if self.hosts else None),
            cores=machine.shared_cores(),
            methods=[method for method in METHODS if method != "salient"],
            seed=self.seed,
            limit_s=self.limit,
        )

    def _job(self, shards: str) -> Job[Any]:
        return Job(
            plan=self._plan(str(self.method)),
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
            epochs=self.epochs,
            profile="" if self.profile is None else str(self.profile.resolve()),
            out="" if self.out is None else str(self.out.resolve()),
            checkpoint_every=self.checkpoint_every,
            checkpoint_steps=self.checkpoint_steps,
            check=self.check,
            resume=self.resume,
            resume_epoch=self.resume_epoch,
            limit_s=self.limit,
            launch=self._launch(),
        )

    def _launch(self) -> dict[str, Any]:
        if self.hosts:
            return {"kind": "lab", "hosts": self.hosts, "rate": self.rate}
        if (rank_spec := launch.rank_spec_from_torchrun()) is not None:
            return {"kind": "torchrun", "ranks": rank_spec.world_size}
        return {"kind": "local", "ranks": self.workers}

    def _shards(self, folder: Path) -> Path:
        """Given, or kept by the run that this one goes on with, or made now."""
        given, ranks = Path(self.data), self.hosts or self.workers
        if graphs.is_shard_folder(given):
            parts = graphs.read_manifest(given).num_parts
            if launch.rank_spec_from_torchrun() is None and parts != ranks:
                option = "--hosts" if self.hosts else "--workers"
                raise ValueError(
                    f"{given} has {parts} parts, this run {ranks} ranks; give {option} {parts}, or partition again"
                )
            return given.resolve()
        kept = (self.out or folder) / "shards"
        if graphs.is_shard_folder(kept):
            if graphs.read_manifest(kept).num_parts == ranks:
                return kept.resolve()
            kept = folder / "shards"  # another number of ranks goes on
        with Console(stderr=True).status("partition") as status:
            graphs.prepare(self.data, graphs.Settings(ranks, seed=self.seed), kept, on_phase=status.update)
        return kept.resolve()

    def _train(self, job: Job[Any], console: Console, events: Path) -> dict[str, Any]:
        job = replace(job, events=str(events.resolve()))
        work = train_on_batches if job.plan.method == "salient" else train_on_all
        before = _written_s(job)
        try:
            with watched(events, job.plan.method, self.epochs, console):
                if self.hosts:
                    with Lab(self.hosts, rate=self.rate) as hosts:
                        return dict(hosts.run(work, job)[0])
                return dict(launch.run(work, job, workers=self.workers)[0])
        except Exception as error:
            # For the report of what there is; a run that was refused before it began is as it was.
            if job.out and not console.quiet and _written_s(job) != before:
                rank_spec = launch.rank_spec_from_torchrun()
                ranks = rank_spec.world_size if rank_spec is not None else self.hosts or self.workers
                said = (isinstance(error, launch.RankFailed) and error.reason) or str(error)
                stamp = artifacts.stamp(seed=self.seed, world_size=ranks)
                artifacts.write_json(Path(job.out) / FAILED, {**stamp, "error": said})
            raise


def _written_s(job: Job[Any]) -> float | None:
    """When the run last began."""
    path = Path(job.out) / PLAN
    return path.stat().st_mtime if job.out and path.exists() else None
