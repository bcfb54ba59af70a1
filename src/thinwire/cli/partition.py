"""`thinwire partition`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from rich.console import Console

from thinwire import artifacts, graphs
from thinwire.cli import tables


@dataclass
class Partition:
    """Cut a graph into parts and write a shard for each, ready to train on.

    thinwire partition synthetic --parts 4 --out shards

    thinwire partition graph.npz --parts 8 --objective cut --out shards

    thinwire partition edges.csv --nodes nodes.csv --parts 2 --out shards
    """

    joins: ClassVar[bool] = False
    data: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]]
    """An .npz file, a folder of .npy files, an edge list, a data set's name, or synthetic:..."""
    parts: int = 2
    """Number of parts."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("shards")
    """Folder to write the shards to; older shards there are replaced."""
    method: Literal["metis", "random", "range"] = "metis"
    """How nodes are assigned to parts."""
    objective: Literal["volume", "cut"] = "volume"
    """metis: what to minimise: halo rows (volume), or edges between parts (cut)."""
    thorough: tyro.conf.FlagCreatePairsOff[bool] = False
    """metis: use every edge of a large graph, not a sample: more memory, about 3 % fewer halo rows."""
    assignment: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Your own assignment instead: a part for each node, as .npy or as text with one number a line."""
    nodes: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Table of nodes that belongs to an edge list."""
    layers: int = 3
    """Number of layers of the model that bytes are predicted for."""
    hidden: int = 256
    """Width of that model's hidden layers."""
    seed: int = 0
    """Seed of the partitioner."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file too."""

    def verify(self) -> None:
        if self.json is not None:
            artifacts.check_writable(self.json)
        graphs.check_out(self.out)
        if self.layers < 1 or self.hidden < 1:
            raise ValueError(f"--layers is {self.layers} and --hidden {self.hidden}; give 1 or more")

    def run(self, console: Console) -> None:
        with Console(stderr=True).status("load") as status:
            result = graphs.prepare(
                self.data,
                graphs.Settings(self.parts, self.method, self.objective, self.seed, self.thorough),
                self.out,
                nodes=self.nodes,
                assignment=self.assignment,
                layers=self.layers,
                hidden=self.hidden,
                on_phase=status.update,
            )
        console.print(tables.parts(result))
        for line in tables.partition_lines(result):
            console.print(line, highlight=False)
        console.print(f"written: {self.out}", highlight=False, markup=False, soft_wrap=True)
        if self.json is not None:
            artifacts.write_json(self.json, {**artifacts.stamp(seed=self.seed, world_size=self.parts), **result})
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)
