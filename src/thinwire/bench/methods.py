"""Methods of full-graph cases, written like the options of `thinwire train`: "sylvie --staleness 0 --model gcn"."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from thinwire.fullgraph import Plan
from thinwire.fullgraph.job import Job

# Float32 messages that cost nothing: what an epoch takes that waits for nobody.
FREE = "free"
PLAN = {
    "bits": int,
    "staleness": int,
    "sync_every": int,
    "bits_choice": str,
    "assign": str,
    "assign_every": int,
    "balance": float,
    "weigh": str,
    "only": str,
}
JOB = {"model": str, "layers": int, "hidden": int, "dropout": float, "norm": str, "lr": float, "epochs": int}


def job_of(method: str, settings: Mapping[str, Any], seed: int) -> Job:
    """The run that a method stands for; what it does not say is the case's, and then the default."""
    name, *words = method.split()
    given: dict[str, Any] = {key: value for key, value in settings.items() if key in JOB or key in PLAN}
    for option, value in zip(words[::2], words[1::2], strict=False):
        key = option.removeprefix("--").replace("-", "_")
        kind = (JOB | PLAN).get(key)
        if kind is None or not option.startswith("--"):
            raise ValueError(f"{method!r}: there is no {option}; give some of {', '.join(JOB | PLAN)}")
        try:
            given[key] = kind(value)
        except ValueError:
            raise ValueError(f"{method!r}: {option} {value}; give {kind.__name__}") from None
    if len(words) % 2:
        raise ValueError(f"{method!r}: {words[-1]} has no value")
    plan = {key: value for key, value in given.items() if key in PLAN} | {"seed": seed}
    if "bits_choice" in plan:
        plan["bits_choice"] = Plan.parse_bits(plan["bits_choice"])
    own = {field.name for field in fields(Job)}
    return Job(
        plan=Plan("exact" if name == FREE else name, **plan),
        data=str(settings.get("data", "synthetic")),
        **{key: value for key, value in given.items() if key in own},
    )


def check(methods: tuple[str, ...], settings: Mapping[str, Any], more: Mapping[str, type]) -> None:
    """Raise where a method or a setting is not known."""
    known = {"data": str, **JOB, **PLAN, **more}
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"settings.{name} is not known; known are {', '.join(sorted(known))}")
        if type(value) is not known[name]:
            raise ValueError(f"settings.{name} is {value!r}; give {known[name].__name__}")
    for method in methods:
        job_of(method, settings, 0)
