"""`thinwire plan gradients`: groups, codecs and the predicted step of a network's gradients, beside the usual ways."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from thinwire import artifacts, launch
from thinwire.bench import fusion
from thinwire.cli import tables
from thinwire.gradients import Plan
from thinwire.gradients.hook import MeasuredGroup
from thinwire.gradients.trace import write_trace
from thinwire.launch import Lab


def run(
    console: Console,
    *,
    network: str,
    codec: str,
    workers: int,
    hosts: int,
    rate: str,
    seed: int,
    trace: Path | None,
    json: Path | None,
) -> None:
    where = f"{hosts} emulated hosts at {rate}" if hosts else f"{workers} ranks on this machine"
    with Console(stderr=True, quiet=console.quiet).status(f"{network} on {where}: profile, plan, a few steps"):
        if hosts:
            with Lab(hosts, rate=rate) as lab:
                found = lab.run(fusion.rank, network, codec, seed)[0]
        else:
            found = launch.run(fusion.rank, network, codec, seed, workers=workers)[0]
    if console.quiet:  # one rank of many: the first one tells
        return
    plan: Plan = found["plan"]
    console.print(tables.groups(plan, f"gradients of {network}, {where}"))
    console.print(tables.fusions(plan, found["measured_s"]))
    if trace is not None:
        write_trace(trace, plan, [MeasuredGroup(**row) for row in found["times"]])
        console.print(f"written: {trace}, for ui.perfetto.dev", highlight=False)
    if json is not None:
        artifacts.write_json(json, {**artifacts.stamp(seed=seed, world_size=plan.world_size), **content(found)})
        console.print(f"written: {json}", highlight=False)


def content(found: dict[str, Any]) -> dict[str, Any]:
    """For programs: rows as every plan has them, fastest first, and the whole plan."""
    plan: Plan = found["plan"]
    assert plan.predicted is not None
    steps = {"cupcake": plan.predicted.step_s, **plan.alternatives}
    none = steps["none"]
    rows = [
        {"method": name, "step_s": step_s, "speedup": none / step_s}
        for name, step_s in sorted(steps.items(), key=lambda item: item[1])
    ]
    return {
        "rows": rows,
        "recommended": rows[0]["method"],
        "measured_s": found["measured_s"],
        "plan": asdict(plan),
        "profile": found["profile"],
    }
