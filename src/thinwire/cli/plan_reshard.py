"""`thinwire plan reshard`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from thinwire import artifacts
from thinwire.bench.crossmesh import parse
from thinwire.cli.predictions import seconds
from thinwire.crossmesh.broadcast import STRATEGIES
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import AUTO, Plan, plan
from thinwire.launch import lab
from thinwire.prediction.wires import PAYLOAD

MOST_RANKS = 1 << 10


@dataclass
class PlanReshard:
    """Plan how a tensor goes from one mesh to another, and predict how long each strategy takes.

    thinwire plan reshard "2x4 S0 R -> 2x4 R S1 of 4096x4096"   8 ranks on 2 hosts to 8 on 2 others

    thinwire plan reshard "1x4 R S0 -> 4x4 R R of 8192x8192" --rate 10gbit
    """

    joins: ClassVar[bool] = False
    problem: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="PROBLEM")]]
    """Meshes (hosts x ranks) with a placement (R, S0, S1, P) for each of their axes, and the tensor's shape."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each host's link, both ways."""
    itemsize: int = 4
    """Bytes of each value."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the plans to this file."""

    def verify(self) -> None:
        if self.json is not None:
            artifacts.check_writable(self.json)
        lab.parse_rate(self.rate)
        if self.itemsize < 1:
            raise ValueError(f"--itemsize is {self.itemsize}; give 1 or more bytes a value")
        parse(self.problem, ranks_per_host=MOST_RANKS)

    def run(self, console: Console) -> None:
        plans = self._plans()
        best = plans[AUTO]
        shown = Table(
            title=escape(self.problem),
            caption=f"model: hosts' cards at {self.rate} each way; no plan is faster than the bound",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        shown.add_column("strategy")
        for heading in ("seconds", "bound", "gap", "MB between hosts", "least MB", "pieces"):
            shown.add_column(heading, justify="right")
        for name, strategy_plan in plans.items():
            shown.add_row(
                f"{name}: {strategy_plan.strategy}" if name == AUTO else name,
                seconds(strategy_plan.predicted_s),
                seconds(strategy_plan.bound_s),
                f"{strategy_plan.gap:.1%}",
                f"{strategy_plan.host_bytes / 1e6:,.2f}",
                f"{strategy_plan.least_host_bytes / 1e6:,.2f}",
                f"{len(strategy_plan.routes)}",
                style="bold green" if name == AUTO else "",
            )
        console.print(shown)
        if self.json is not None:
            rows = [
                {
                    "method": name,
                    "seconds": strategy_plan.predicted_s,
                    "bound_s": strategy_plan.bound_s,
                    "bytes": strategy_plan.host_bytes,
                    "model": "cards",
                }
                for name, strategy_plan in plans.items()
            ]
            stamp = artifacts.stamp(seed=0, world_size=len(best.host_of))
            content = {**stamp, "rows": rows, "recommended": best.strategy, "plan": best.to_json()}
            artifacts.write_json(self.json, content)
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)

    def _plans(self) -> dict[str, Plan]:
        mesh = [int(side.split()[0].split("x")[1]) for side in self.problem.split(" of ")[0].split(" -> ")]
        source, destination = parse(self.problem, ranks_per_host=max(mesh))
        ranks = max((*source.ranks, *destination.ranks)) + 1
        hosts = [rank // max(mesh) for rank in range(ranks)]
        network = Network.even(hosts, lab.parse_rate(self.rate) / 8 * PAYLOAD)
        return {
            strategy: plan(source, destination, itemsize=self.itemsize, network=network, strategy=strategy)
            for strategy in (*STRATEGIES, AUTO)
        }
