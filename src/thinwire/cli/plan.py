"""`thinwire plan`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from thinwire import artifacts, graphs, launch
from thinwire.bench import methods
from thinwire.cli import limit, predictions
from thinwire.cli.limit import Limit
from thinwire.cli.spelling import nearest
from thinwire.launch import lab
from thinwire.links.cost import CostModel, read_cost
from thinwire.prediction import even
from thinwire.prediction.here import predict_here
from thinwire.scratch import scratch_folder
from thinwire.training import machine

NAMES = tuple(methods.METHODS)


@dataclass
class Plan:
    """Predict what an epoch of each method would take, before training, and recommend one.

    thinwire plan --hosts 8 --rate 1gbit               eight machines on gigabit Ethernet, a synthetic graph

    thinwire plan --data shards --profile profile.json  a graph in parts, wires that were measured

    thinwire plan --workers 4                          ranks on this machine

    Others, each with its --help: thinwire plan minibatch (what a cache saves), plan gradients (any network's fusion and
    codecs), plan reshard (a tensor between two meshes).
    """

    joins: ClassVar[bool] = True
    data: str = "synthetic"
    """A graph by name (synthetic:..., planetoid:cora, graph.npz), or a folder that `thinwire partition` has written."""
    hosts: int = 0
    """Number of machines to plan for, one rank each. They need not exist: a few epochs run on this machine instead."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each machine's link, both ways."""
    profile: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File that `thinwire profile` wrote: rates measured between the ranks, instead of --rate."""
    workers: int = 2
    """Number of ranks on this machine, without --hosts and --profile; a shard folder has one rank for each part."""
    cores: int | None = None
    """Cores that all ranks share; 0: each rank has its own. (0; for ranks on this machine: its cores)"""
    methods: Annotated[str, tyro.conf.arg(metavar="LIST")] = ",".join(methods.COMPARED)
    """Methods to compare, with options, like "exact,sylvie --bits 2"."""
    model: Literal["sage", "gcn", "gat", "gin"] = "sage"
    """Kind of layers."""
    layers: int = 3
    """Number of layers."""
    hidden: int = 128
    """Width of hidden layers."""
    gradients: Annotated[str, tyro.conf.arg(metavar="CODEC")] = "auto"
    """How weights' gradients travel, as for `thinwire train`; auto: what a run would choose on these links."""
    seed: int = 0
    """Seed of the partition, weights and rounding."""
    limit: Limit = limit.USUAL
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file."""

    def verify(self) -> None:
        if self.json is not None:
            artifacts.check_writable(self.json)
        for name in ("workers", "layers", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}; give 1 or more")
        for name in ("hosts", "cores"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"--{name} is {getattr(self, name)}; give 1 or more, or leave it out")
        lab.parse_rate(self.rate)
        limit.check(self.limit)
        if self.profile is not None and (self.hosts or self.rate != Plan.rate):
            raise ValueError(
                "--profile says how many ranks there are and how fast their links; leave --hosts and --rate out"
            )
        if not self.hosts and self.rate != Plan.rate:
            raise ValueError(f"--rate {self.rate}: of how many machines? Give --hosts")
        for method in self._methods():
            if method.split()[0] not in NAMES:
                near = nearest(method.split()[0], NAMES)
                raise ValueError(f"--methods has {method!r}; give some of {', '.join(NAMES)}.{near}")
        methods.check(tuple(self._methods()), self._settings(), {})
        rank_spec, cost = launch.rank_spec_from_torchrun(), self._cost()
        if rank_spec is not None and cost is not None and cost.world_size != rank_spec.world_size:
            raise ValueError(
                f"the plan is for {cost.world_size} ranks, torchrun started {rank_spec.world_size}; start as many"
            )

    def run(self, console: Console) -> None:
        cost, ranks = self._cost(), self._ranks()
        with (
            scratch_folder("plan") as scratch,
            Console(stderr=True, quiet=console.quiet).status("plan") as status,
        ):
            folder, joins = Path(self.data), launch.rank_spec_from_torchrun() is not None
            if not graphs.is_shard_folder(folder):
                folder = scratch / "shards"
                if not joins:  # in a torchrun job, each machine makes its own shards
                    graphs.prepare(self.data, graphs.Settings(ranks, seed=self.seed), folder, on_phase=status.update)
            elif (parts := graphs.read_manifest(folder).num_parts) != ranks:
                raise ValueError(
                    f"{folder} has {parts} parts, the plan is for {ranks}; plan for {parts}, or partition again"
                )
            status.update(f"a few epochs of {len(self._methods())} methods on {ranks} ranks")
            prediction = predict_here(
                str(folder.resolve()) if graphs.is_shard_folder(folder) else "",
                {**self._settings(), "data": self.data},
                ranks=ranks,
                cost=cost,
                cores=self._cores(),
                methods=self._methods(),
                seed=self.seed,
                limit_s=self.limit,
            )
        if console.quiet:  # in a torchrun job, only rank 0 prints
            return
        console.print(predictions.table(prediction, f"{self.model} on {self.data}, {self._where(ranks)}"))
        console.print(predictions.chart(prediction))
        console.print(
            f"recommended: thinwire train {prediction.recommended}{self._again()}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        if self.json is not None:
            content = {**artifacts.stamp(seed=self.seed, world_size=ranks), "data": self.data, **prediction.to_json()}
            artifacts.write_json(self.json, content)
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)

    def _again(self) -> str:
        """The options of `thinwire train` that this plan was made with."""
        defaults = {name: getattr(Plan, name) for name in ("data", "model", "layers", "hidden", "gradients", "seed")}
        changed = [
            f" --{name} {getattr(self, name)}" for name, usual in defaults.items() if getattr(self, name) != usual
        ]
        where = ", under torchrun on each machine" if self._cost() is not None else f" --workers {self._ranks()}"
        return "".join(changed) + where

    def _methods(self) -> list[str]:
        # Splits before a method's name, not at the commas within an option's list of numbers.
        return [word.strip() for word in re.split(r",(?=\s*[a-z])", self.methods) if word.strip()]

    def _settings(self) -> dict[str, Any]:
        return {"model": self.model, "layers": self.layers, "hidden": self.hidden, "gradients": self.gradients}

    def _cost(self) -> CostModel | None:
        if self.profile is not None:
            return read_cost(str(self.profile))
        return even(self.hosts, lab.parse_rate(self.rate)) if self.hosts else None

    def _ranks(self) -> int:
        if (cost := self._cost()) is not None:
            return cost.world_size
        if (rank_spec := launch.rank_spec_from_torchrun()) is not None:
            return rank_spec.world_size
        folder = Path(self.data)
        return graphs.read_manifest(folder).num_parts if graphs.is_shard_folder(folder) else self.workers

    def _cores(self) -> int | None:
        if self.cores is not None:
            return self.cores or None
        return machine.shared_cores() if self._cost() is None else None

    def _where(self, ranks: int) -> str:
        if self.profile is not None:
            return f"{ranks} ranks of {self.profile.name}"
        return f"{ranks} machines at {self.rate}" if self.hosts else f"{ranks} ranks on this machine"
