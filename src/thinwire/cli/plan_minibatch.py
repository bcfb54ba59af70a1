"""`thinwire plan minibatch`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from thinwire import artifacts, graphs, minibatch
from thinwire.cli import tables
from thinwire.gradients.algorithms import NONE
from thinwire.gradients.sent import AUTO, check
from thinwire.minibatch import Salient, predict
from thinwire.minibatch.methods.salient import Rows
from thinwire.minibatch.policies import Question, capacity, choose, worth
from thinwire.minibatch.rows import RowFormat
from thinwire.minibatch.schedule import schedule_of
from thinwire.scratch import scratch_folder
from thinwire.training.job import Job
from thinwire.training.method import made

# All but `oracle`, which looks at the epochs of the run itself: before a run there are none.
POLICIES = ("vip", "degree", "halo", "paths", "simulation", "none")


@dataclass
class PlanMinibatch:
    """Predict what an epoch of minibatch training will send and hold in memory, for several caches.

    thinwire plan minibatch --workers 4                       a synthetic graph on four ranks

    thinwire plan minibatch --data shards --caches 0,0.1,0.5  a graph that `thinwire partition` has written
    """

    joins: ClassVar[bool] = False
    data: str = "synthetic"
    """A graph by name (synthetic:..., planetoid:cora, graph.npz), or a folder that `thinwire partition` has written."""
    workers: int = 2
    """Number of ranks; a shard folder has one rank for each part."""
    model: Literal["sage", "gcn", "gat", "gin"] = "sage"
    """Kind of layers; gradients of their weights are sent too."""
    layers: int = 3
    """Number of layers."""
    hidden: int = 128
    """Width of hidden layers."""
    norm: Literal["layer", "none"] = "layer"
    """Normalisation between layers."""
    batch: int = 1024
    """Most seed nodes of a rank in a step."""
    fanouts: Annotated[str, tyro.conf.arg(metavar="LIST")] = ""
    """Neighbours to sample in each hop, from the seeds outwards; -1: all. (15,10,5)"""
    caches: Annotated[str, tyro.conf.arg(metavar="LIST")] = "0,0.01,0.05,0.1,0.2,0.5,1"
    """Cache sizes to compare, as replication factors."""
    policies: Annotated[str, tyro.conf.arg(metavar="LIST")] = "vip"
    """Ways to choose the rows to cache: some of vip,degree,halo,paths,simulation (which samples two epochs),none."""
    rows: Rows = "auto"
    """Format in which rows of features are sent. (as they are stored)"""
    gradients: Annotated[str, tyro.conf.arg(metavar="CODEC")] = AUTO
    """How weights' gradients travel, as for `thinwire train`. auto is counted as float32: a run begins so."""
    seed: int = 0
    """Seed of the partition."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file."""

    def verify(self) -> None:
        if self.json is not None:
            artifacts.check_writable(self.json)
        for name in ("workers", "layers", "hidden", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}; give 1 or more")
        self._alphas()
        self._method()
        check(self.gradients)
        for policy in self.policies.split(","):
            if policy not in POLICIES:
                raise ValueError(f"--policies {self.policies}; give some of {', '.join(POLICIES)}")

    def run(self, console: Console) -> None:
        with (
            scratch_folder("plan") as scratch,
            Console(stderr=True).status("plan") as status,
        ):
            folder = Path(self.data)
            if not graphs.is_shard_folder(folder):
                folder = scratch / "shards"
                settings = graphs.Settings(self.workers, seed=self.seed)
                graphs.prepare(self.data, settings, folder, on_phase=status.update)
            status.update("how likely each vertex is in a batch")
            result = self._planned(folder)
        console.print(tables.caches(result))
        if self.json is not None:
            artifacts.write_json(self.json, {**artifacts.stamp(seed=self.seed, world_size=result["parts"]), **result})
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)

    def _planned(self, folder: Path) -> dict[str, Any]:
        method, topology = self._method(), minibatch.Topology.read(folder)
        shard = graphs.read_shard(folder, 0)
        row_format = RowFormat.of(method.rows, shard.x)
        n = topology.num_parts
        members = topology.members(graphs.TRAIN)
        questions = [
            Question(topology, schedule_of(members, part, method.batch, self.seed), method.fanouts, 1)
            for part in range(n)
        ]
        steps = questions[0].schedule.steps
        gradients = steps * self._gradient_bytes(shard, n)
        largest = int(max(topology.starts[1:] - topology.starts[:-1]))
        rows_found = []
        for policy in self.policies.split(","):
            worths = [worth(policy, question) for question in questions]
            for alpha in self._alphas():
                room = capacity(alpha, topology.num_nodes, n)
                kept = [choose(part_worth, room) for part_worth in worths]
                rows = [predict.rows_of(question, ids) for question, ids in zip(questions, kept, strict=True)]
                traffic = predict.traffic(rows, steps, row_format)
                held = largest + max(len(ids) for ids in kept)
                row_bytes = shard.x.shape[1] * shard.x.element_size()
                rows_found.append(
                    {
                        "method": f"salient --cache {alpha:g} --cache-policy {policy}",
                        "cache": alpha,
                        "model": "vip",
                        "cache_policy": policy,
                        "remote_rows": int(traffic.rows),
                        "bytes_per_epoch": int(traffic.feature_bytes + gradients),
                        "feature_rows_held": held,
                        "memory_bytes": int(held * row_bytes + topology.nbytes),
                        "cache_fill_bytes": predict.fill_bytes(sum(map(len, kept)), row_bytes, n),
                    }
                )
        return {"data": self.data, "parts": n, "steps": steps, "gradient_bytes": gradients, "rows": rows_found}

    def _gradient_bytes(self, shard: graphs.Shard, world_size: int) -> int:
        from thinwire.minibatch.run import GRADIENT_GROUPS
        from thinwire.training.gradients import bytes_of
        from thinwire.training.models import build  # imported here: it imports PyG

        job = Job(self._method(), self.data, layers=self.layers, hidden=self.hidden, model=self.model, norm=self.norm)
        model = build(job, num_features=shard.x.shape[1], num_classes=shard.num_classes)
        codec = NONE if self.gradients == AUTO else self.gradients
        return bytes_of(model.named_parameters(), world_size, groups=GRADIENT_GROUPS, codec=codec)

    def _alphas(self) -> list[float]:
        try:
            alphas = [float(word) for word in self.caches.split(",")]
        except ValueError:
            alphas = [-1.0]
        if not all(0 <= alpha < math.inf for alpha in alphas):
            raise ValueError(f"--caches {self.caches}; give replication factors, like 0,0.1,0.5")
        return alphas

    def _method(self) -> Salient:
        fanouts = {"fanouts": self.fanouts} if self.fanouts else {}
        options = {"batch": str(self.batch), "rows": self.rows, **fanouts}
        return made(Salient, options, "plan minibatch").for_layers(self.layers)
