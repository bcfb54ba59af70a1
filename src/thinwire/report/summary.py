"""A run's results in one line, for the page, the terminal and JSON; and a table of what was run on what."""

from collections.abc import Mapping, Sequence
from typing import Any

from thinwire.report.figure import Table
from thinwire.report.records import Facts, Launch, Run
from thinwire.report.units import NOTHING, bytes_text, seconds_text, share_text


def summary(run: Run) -> dict[str, Any]:
    """A run's figures, with the same names as in `train --json` where that has them."""
    return {
        "run": run.label,
        "folder": str(run.folder),
        "state": run.state.word,
        "sentence": run.state.sentence,
        "error": run.state.error,
        "method": run.method,
        "model": run.facts.model if isinstance(run.facts.model, str) else "",
        "data": run.facts.data,
        "workers": run.facts.world_size,
        "seed": run.facts.seed,
        "epochs": run.asked,
        "epochs_done": run.done,
        "loss": run.last("loss"),
        "val_score": run.last("val_score"),
        "test_score": run.last("test_score"),
        "epoch_s_median": run.median("seconds"),
        "exposed_s_per_epoch": run.median("exposed_s"),
        "bytes_per_epoch": run.median("bytes"),
        "float32_bytes_per_epoch": run.median("float32_bytes"),
        "training_s": sum(epoch.seconds or 0.0 for epoch in run.epochs),
    }


def results(runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        figures = summary(run)
        thick, thin = figures["float32_bytes_per_epoch"], figures["bytes_per_epoch"]
        rows.append(
            (
                run.label,
                run.state.word,
                run.method or NOTHING,
                f"{run.done}" if run.asked is None else f"{run.done} of {run.asked}",
                share_text(figures["test_score"]),
                share_text(figures["val_score"]),
                seconds_text(figures["epoch_s_median"]),
                seconds_text(figures["exposed_s_per_epoch"]),
                bytes_text(thin),
                f"{thick / thin:.1f}x" if thick and thin else NOTHING,
            )
        )
    headings = ("run", "state", "method", "epochs", "test", "validation", "an epoch", "of it waiting", "bytes an epoch")
    return Table((*headings, "thinner than float32"), tuple(rows), texts=3)


def set_up(runs: Sequence[Run]) -> Table:
    """A row for each fact, a column for each run. Facts that no run has are left out."""
    columns = [_facts(run) for run in runs]
    names = list(dict.fromkeys(name for facts in columns for name in facts))
    rows = [
        (name, *(facts.get(name, NOTHING) for facts in columns))
        for name in names
        if any(facts.get(name) for facts in columns)
    ]
    return Table(("", *(run.label for run in runs)), tuple(rows), texts=1 + len(runs))


def _facts(run: Run) -> dict[str, str]:
    facts = run.facts
    texts = {
        "data": facts.data,
        "model": _model(facts),
        "ranks": _shown(facts.world_size),
        "where": _where(facts.launch),
        "machine": ", ".join(_machine(facts.machine)),
        "plan": _listed(facts.plan),
        "optimizer": facts.optimizer,
        "learning rate": _shown(facts.lr),
        "seed": _shown(facts.seed),
        "thinwire": facts.thinwire,
        "folder": str(run.folder),
    }
    return {name: value for name, value in texts.items() if value}


def _model(facts: Facts) -> str:
    if not facts.model:
        return ""
    if ":" in str(facts.model):  # the user's own
        return _shown(facts.model)
    parts = [_shown(facts.model), f"{_shown(facts.layers)} layers of {_shown(facts.hidden)}"]
    parts += [f"norm {facts.norm}"] if facts.norm else []
    parts += [f"dropout {_shown(facts.dropout)}"] if facts.dropout else []
    return ", ".join(parts)


def _where(launch: Launch) -> str:
    kind, hosts, rate = launch.kind, _shown(launch.hosts), _shown(launch.rate)
    if kind == "lab":
        return f"{hosts} emulated hosts at {rate}" if hosts else "emulated hosts"
    return {"local": "processes on one machine", "torchrun": "a job of torchrun's"}.get(kind, kind)


def _machine(machine: Mapping[str, Any]) -> list[str]:
    known = {"cpu": "{}", "cores": "{} cores", "torch": "torch {}", "python": "Python {}", "kernels": "kernels {}"}
    shown = [form.format(value) for name, form in known.items() if (value := _shown(machine.get(name)))]
    return shown + [
        f"{name} {value}" for name, fact in machine.items() if name not in known and (value := _shown(fact))
    ]


def _listed(plan: Mapping[str, Any]) -> str:
    """A method and its options, as text."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in plan.items() if name != "seed" and _shown(value))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_shown(item) for item in value)
    return "" if value is None or isinstance(value, dict) else str(value)
