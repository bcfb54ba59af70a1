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
    """Say what each method would take here, before training, and which one to choose.

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
    """Machines, one rank each. They need not be here: a few epochs on this machine stand for them."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Of each machine's link, both ways."""
    profile: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """What `thinwire profile` measured between the ranks, instead of --rate."""
    workers: int = 2
    """Ranks on this machine, without --hosts and --profile; of a shard folder, its parts."""
    cores: int | None = None
    """That all ranks share; 0: each has its own. (0; of ranks on this machine its cores)"""
    methods: Annotated[str, tyro.conf.arg(metavar="LIST")] = ",".join(methods.COMPARED)
    """Which to compare, with options, like "exact,sylvie --bits 2"."""
    model: Literal["sage", "gcn", "gat", "gin"] = "sage"
    """Kind of layers."""
    layers: int = 3
    """How many."""
    hidden: int = 128
    """How wide."""
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
            scratch_folder("plan") as made,
            Console(stderr=True, quiet=console.quiet).status("plan") as status,
        ):
            folder, joins = Path(self.data), launch.rank_spec_from_torchrun() is not None
            if not graphs.is_shard_folder(folder):
                folder = made / "shards"
                if not joins:  # else each machine of the job sees to its own
                    graphs.prepare(self.data, graphs.Settings(ranks, seed=self.seed), folder, on_phase=status.update)
            elif (parts := graphs.read_manifest(folder).num_parts) != ranks:
                raise ValueError(
                    f"{folder} has {parts} parts, the plan is for {ranks}; plan for {parts}, or partition again"
                )
            status.update(f"a few epochs of {len(self._methods())} methods on {ranks} ranks")
            found = predict_here(
                str(folder.resolve()) if graphs.is_shard_folder(folder) else "",
                {**self._settings(), "data": self.data},
                ranks=ranks,
                cost=cost,
                cores=self._cores(),
                methods=self._methods(),
                seed=self.seed,
                limit_s=self.limit,
            )
        if console.quiet:  # one rank of many: the first one tells
            return
        console.print(predictions.table(found, f"{self.model} on {self.data}, {self._where(ranks)}"))
        console.print(predictions.chart(found))
        console.print(
            f"recommended: thinwire train {found.recommended}{self._again()}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        if self.json is not None:
            content = {**artifacts.stamp(seed=self.seed, world_size=ranks), "data": self.data, **found.to_json()}
            artifacts.write_json(self.json, content)
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)

    def _again(self) -> str:
        """Options to train by what was planned."""
        usual = {name: getattr(Plan, name) for name in ("data", "model", "layers", "hidden", "seed")}
        given = [f" --{name} {getattr(self, name)}" for name, each in usual.items() if getattr(self, name) != each]
        where = ", under torchrun on each machine" if self._cost() is not None else f" --workers {self._ranks()}"
        return "".join(given) + where

    def _methods(self) -> list[str]:
        # Not at the commas within an option.
        return [word.strip() for word in re.split(r",(?=\s*[a-z])", self.methods) if word.strip()]

    def _settings(self) -> dict[str, Any]:
        return {"model": self.model, "layers": self.layers, "hidden": self.hidden}

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
