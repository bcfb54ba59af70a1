"""`thinwire plan gradients`: groups, codecs and the predicted step of a network's gradients, beside the usual ways."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from thinwire import artifacts, launch
from thinwire.bench import fusion
from thinwire.cli import limit, tables
from thinwire.cli.limit import Limit
from thinwire.gradients import Plan
from thinwire.gradients.algorithms import algorithm
from thinwire.gradients.hook import MeasuredGroup
from thinwire.gradients.trace import write_trace
from thinwire.launch import Lab, lab


@dataclass
class PlanGradients:
    """Plan which gradients of a network to send together, by which codec, and predict the time of a step.

    thinwire plan gradients --hosts 4 --rate 100mbit   emulated hosts (root)

    thinwire plan gradients --network my.module:make   your own: make() returns (model, batch, loss_fn)

    thinwire plan gradients --trace trace.json         the timeline, for ui.perfetto.dev
    """

    joins: ClassVar[bool] = True
    network: Annotated[str, tyro.conf.arg(metavar="NAME")] = "resnet"
    """Network to plan for: resnet, gpt, or your own package.module:function."""
    codec: Annotated[str, tyro.conf.arg(metavar="CODECS")] = "auto"
    """Codecs, separated by commas: topk:0.01, sign, ...; auto chooses, and may choose none."""
    workers: int = 2
    """Number of ranks on this machine."""
    hosts: int = 0
    """Number of emulated hosts with one rank each, instead of --workers."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each emulated host's link, both ways."""
    seed: int = 0
    """Seed of weights and data."""
    trace: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the timelines of the predicted and a measured step to this file, for ui.perfetto.dev."""
    limit: Limit = limit.USUAL
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file."""

    def verify(self) -> None:
        for path in (self.json, self.trace):
            if path is not None:
                artifacts.check_writable(path)
        if self.workers < 1:
            raise ValueError(f"--workers is {self.workers}; give 1 or more")
        lab.parse_rate(self.rate)
        limit.check(self.limit)
        if self.hosts and launch.rank_spec_from_torchrun() is not None:
            raise ValueError("--hosts starts ranks of its own; give it without torchrun")
        if self.hosts < 0:
            raise ValueError(f"--hosts is {self.hosts}; give 1 or more, or leave it out for ranks on this machine")
        if self.hosts and (problem := lab.missing()):
            raise ValueError(problem)
        for codec in () if self.codec == "auto" else self.codec.split(","):
            algorithm(codec)

    def run(self, console: Console) -> None:
        where = f"{self.hosts} emulated hosts at {self.rate}" if self.hosts else f"{self.workers} ranks on this machine"
        with Console(stderr=True, quiet=console.quiet).status(f"{self.network} on {where}: profile, plan, a few steps"):
            if self.hosts:
                with Lab(self.hosts, rate=self.rate) as hosts:
                    result = hosts.run(fusion.rank, self.network, self.codec, self.seed, self.limit)[0]
            else:
                result = launch.run(fusion.rank, self.network, self.codec, self.seed, self.limit, workers=self.workers)[
                    0
                ]
        if console.quiet:  # in a torchrun job, only rank 0 prints
            return
        plan: Plan = result["plan"]
        console.print(tables.groups(plan, f"gradients of {escape(self.network)}, {where}"))
        console.print(tables.fusions(plan, result["measured_s"]))
        if self.trace is not None:
            write_trace(self.trace, plan, [MeasuredGroup(**row) for row in result["times"]])
            console.print(f"written: {self.trace}, for ui.perfetto.dev", highlight=False, markup=False, soft_wrap=True)
        if self.json is not None:
            stamp = artifacts.stamp(seed=self.seed, world_size=plan.world_size)
            artifacts.write_json(self.json, {**stamp, **content(result, self.codec)})
            console.print(f"written: {self.json}", highlight=False, markup=False, soft_wrap=True)


def content(result: dict[str, Any], codec: str) -> dict[str, Any]:
    """The JSON: rows as every plan has them, fastest first, and the whole plan.

    With auto its own choice is recommended, even if another is faster: that one may slow learning and save too little.
    """
    plan: Plan = result["plan"]
    assert plan.predicted is not None
    steps = {"cupcake": plan.predicted.step_s, **plan.alternatives}
    none = steps["none"]
    rows = [
        {"method": name, "step_s": step_s, "speedup": none / step_s, "model": "timeline"}
        for name, step_s in sorted(steps.items(), key=lambda item: item[1])
    ]
    return {
        "rows": rows,
        "recommended": "cupcake" if codec == "auto" else rows[0]["method"],
        "measured_s": result["measured_s"],
        "plan": asdict(plan),
        "profile": result["profile"],
    }
