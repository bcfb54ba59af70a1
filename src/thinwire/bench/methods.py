"""Methods of training cases, written like the options of `thinwire train`: "sylvie --staleness 0 --model gcn"."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from thinwire import fullgraph, graphs, minibatch
from thinwire.graphs import Manifest, Shard
from thinwire.links import Door
from thinwire.training.job import Job

# Float32 messages that cost nothing: what an epoch takes that waits for nobody.
FREE = "free"
SALIENT = "salient"
# Minibatch training with every rank holding all features that its batches may touch.
REPLICATED = "replicated"
FULLGRAPH = {
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
MINIBATCH = {
    "batch": int,
    "fanouts": str,
    "cache": float,
    "cache_policy": str,
    "rows": str,
    "depth": int,
    "threads": int,
}
JOB = {
    "model": str,
    "layers": int,
    "hidden": int,
    "dropout": float,
    "norm": str,
    "lr": float,
    "optimizer": str,
    "decay": str,
    "epochs": int,
}


def job_of(method: str, settings: Mapping[str, Any], seed: int) -> Job[Any]:
    """The run that a method stands for; what it does not say is the case's, and then the default."""
    name, *words = method.split()
    own = MINIBATCH if name in (SALIENT, REPLICATED) else FULLGRAPH
    given: dict[str, Any] = {key: value for key, value in settings.items() if key in JOB or key in own}
    for option, value in zip(words[::2], words[1::2], strict=False):
        key = option.removeprefix("--").replace("-", "_")
        kind = (JOB | own).get(key)
        if kind is None or not option.startswith("--"):
            raise ValueError(f"{method!r}: there is no {option}; give some of {', '.join(JOB | own)}")
        try:
            given[key] = kind(value)
        except ValueError:
            raise ValueError(f"{method!r}: {option} {value}; give {kind.__name__}") from None
    if len(words) % 2:
        raise ValueError(f"{method!r}: {words[-1]} has no value")
    chosen = {key: value for key, value in given.items() if key in own} | {"seed": seed}
    known = {field.name for field in fields(Job)}
    return Job(
        plan=_sampling(name, chosen) if own is MINIBATCH else _whole(name, chosen),
        data=str(settings.get("data", "synthetic")),
        **{key: value for key, value in given.items() if key in known},
    )


def _whole(name: str, chosen: dict[str, Any]) -> fullgraph.Plan:
    if "bits_choice" in chosen:
        chosen["bits_choice"] = fullgraph.Plan.parse_bits(chosen["bits_choice"])
    return fullgraph.Plan("exact" if name == FREE else name, **chosen)


def _sampling(name: str, chosen: dict[str, Any]) -> minibatch.Plan:
    if "fanouts" in chosen:
        chosen["fanouts"] = minibatch.Plan.parse_fanouts(chosen["fanouts"])
    if name == REPLICATED:
        chosen |= {"cache": float(1 << 20), "cache_policy": "vip"}  # more than there is
    return minibatch.Plan(**chosen)


def loaded(door: Door, folder: Path) -> tuple[Shard, Manifest]:
    """A rank's part of what the case trains on."""
    with door.loading():
        return graphs.read_shard(folder / "shards", door.rank), graphs.read_manifest(folder / "shards")


def run_of(job: Job[Any], shard: Shard, door: Door, manifest: Manifest) -> Any:
    """A rank's part of it, by whatever technique."""
    if isinstance(job.plan, minibatch.Plan):
        from thinwire.minibatch.run import Run as Sampling

        return Sampling(job, shard, door, manifest, minibatch.Topology.read(manifest.folder))
    from thinwire.fullgraph.run import Run as Whole  # with PyG, as the other: only ranks need it

    return Whole(job, shard, door, manifest)


def check(methods: tuple[str, ...], settings: Mapping[str, Any], more: Mapping[str, type]) -> None:
    """Raise where a method or a setting is not known."""
    known = {"data": str, **JOB, **FULLGRAPH, **MINIBATCH, **more}
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"settings.{name} is not known; known are {', '.join(sorted(known))}")
        if type(value) is not known[name]:
            raise ValueError(f"settings.{name} is {value!r}; give {known[name].__name__}")
    for method in methods:
        job_of(method, settings, 0)
