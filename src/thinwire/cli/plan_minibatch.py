"""`thinwire plan minibatch`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from thinwire import artifacts, graphs, minibatch
from thinwire.cli import tables
from thinwire.minibatch import Salient, predict
from thinwire.minibatch.methods.salient import Rows
from thinwire.minibatch.policies import Question, capacity, choose, worth
from thinwire.minibatch.rows import RowFormat
from thinwire.minibatch.schedule import schedule_of
from thinwire.scratch import scratch_folder
from thinwire.training.job import Job
from thinwire.training.method import made

# All but `oracle`, which looks at the very epochs of a run: beforehand there is none.
POLICIES = ("vip", "degree", "halo", "paths", "simulation", "none")


@dataclass
class PlanMinibatch:
    """Say what an epoch of minibatch training will send and hold, by cache, before it runs.

    thinwire plan minibatch --workers 4                       a synthetic graph on four ranks

    thinwire plan minibatch --data shards --caches 0,0.1,0.5  a graph that `thinwire partition` has written
    """

    joins: ClassVar[bool] = False
    data: str = "synthetic"
    """A graph by name (synthetic:..., planetoid:cora, graph.npz), or a folder that `thinwire partition` has written."""
    workers: int = 2
    """Ranks; of a shard folder, its parts."""
    model: Literal["sage", "gcn", "gat", "gin"] = "sage"
    """Kind of layers, whose weights' gradients are sent too."""
    layers: int = 3
    """How many."""
    hidden: int = 128
    """How wide."""
    norm: Literal["layer", "none"] = "layer"
    """What stands between them."""
    batch: int = 1024
    """Seeds of a rank in a step, at most."""
    fanouts: Annotated[str, tyro.conf.arg(metavar="LIST")] = ""
    """Neighbours drawn by each hop, from the seeds outwards; -1 all. (15,10,5)"""
    caches: Annotated[str, tyro.conf.arg(metavar="LIST")] = "0,0.01,0.05,0.1,0.2,0.5,1"
    """Replication factors."""
    policies: Annotated[str, tyro.conf.arg(metavar="LIST")] = "vip"
    """Which rows to cache: some of vip,degree,halo,paths,simulation (which samples two epochs),none."""
    rows: Rows = "auto"
    """How rows of features travel. (as they are stored)"""
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
        for policy in self.policies.split(","):
            if policy not in POLICIES:
                raise ValueError(f"--policies {self.policies}; give some of {', '.join(POLICIES)}")

    def run(self, console: Console) -> None:
        with (
            scratch_folder("plan") as made,
            Console(stderr=True).status("plan") as status,
        ):
            folder = Path(self.data)
            if not graphs.is_shard_folder(folder):
                folder = made / "shards"
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
        gradients = n * steps * self._gradient_bytes(shard, n)
        largest = int(max(topology.starts[1:] - topology.starts[:-1]))
        found = []
        for policy in self.policies.split(","):
            best = [worth(policy, question) for question in questions]
            for alpha in self._alphas():
                room = capacity(alpha, topology.num_nodes, n)
                kept = [choose(each, room) for each in best]
                rows = [predict.rows_of(question, ids) for question, ids in zip(questions, kept, strict=True)]
                traffic = predict.traffic(rows, steps, row_format)
                held = largest + max(len(ids) for ids in kept)
                row_bytes = shard.x.shape[1] * shard.x.element_size()
                found.append(
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
        return {"data": self.data, "parts": n, "steps": steps, "gradient_bytes": gradients, "rows": found}

    def _gradient_bytes(self, shard: graphs.Shard, world_size: int) -> int:
        from thinwire.training.gradients import bytes_of
        from thinwire.training.models import build  # with PyG

        job = Job(self._method(), self.data, layers=self.layers, hidden=self.hidden, model=self.model, norm=self.norm)
        made = build(job, num_features=shard.x.shape[1], num_classes=shard.num_classes)
        return bytes_of(made.parameters(), world_size)

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
