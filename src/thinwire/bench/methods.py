"""All training methods by name, and runs written as for `thinwire train`: "sylvie --bits 2 --model gcn"."""

import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from thinwire import fullgraph, graphs, minibatch
from thinwire.graphs import Manifest, Shard
from thinwire.links import Door
from thinwire.training.job import Job
from thinwire.training.method import Method, dashed, known_name, made, options_of, split, type_in_files, value_of

METHODS: dict[str, type[Method]] = {**fullgraph.METHODS, **minibatch.METHODS}
# What `thinwire plan` compares by default.
COMPARED = tuple(words for kind in METHODS.values() for words in kind.compared)
# Exact training with free transfers: an epoch that never waits for the network.
FREE = "free"
# Minibatch training where every rank holds all features that its batches may touch.
REPLICATED = "replicated"
# Methods that exist only in cases, as other methods. The cache of REPLICATED is larger than any graph's features.
STANDS_FOR = {FREE: "exact", REPLICATED: f"salient --cache {1 << 20} --cache-policy vip"}
# Options of a run, besides those of its method.
JOB = ("model", "layers", "hidden", "dropout", "norm", "lr", "optimizer", "decay", "gradients", "epochs")


@cache
def _job_options() -> Mapping[str, Any]:
    hints = typing.get_type_hints(Job)
    return {name: hints[name] for name in JOB}


def is_sampled(words: str) -> bool:
    """Whether the method trains on sampled batches."""
    return _split(words)[0] in minibatch.METHODS


def job_of(words: str, settings: Mapping[str, Any], seed: int) -> Job[Any]:
    """The run that these words describe. Options that they omit come from the case's settings, then from defaults."""
    name, options_in_words = _split(words)
    kind = METHODS[known_name(name, {**METHODS, **STANDS_FOR})]
    known = {**_job_options(), **options_of(kind)}
    for option in options_in_words:
        if option not in known:
            raise ValueError(f"{words!r}: there is no {dashed(option)}; give some of {', '.join(map(dashed, known))}")
    texts = {option: str(value) for option, value in settings.items() if option in known} | options_in_words
    if words.split()[0] == FREE:
        texts["gradients"] = "none"  # nothing is saved where nothing is sent
    chosen = {option: text for option, text in texts.items() if option in options_of(kind)}
    options = {name: value_of(name, text, known[name], words) for name, text in texts.items() if name in JOB}
    job = Job(made(kind, chosen, words), data=str(settings.get("data", "synthetic")), seed=seed, **options)
    return job.for_layers()


def _split(words: str) -> tuple[str, dict[str, str]]:
    name, options = split(words)
    real_name, implied = split(STANDS_FOR.get(name, name))
    return real_name, options | implied


def loaded(door: Door, folder: Path) -> tuple[Shard, Manifest]:
    """This rank's shard, and the manifest, of the data that the case trains on."""
    with door.loading():
        return graphs.read_shard(folder / "shards", door.rank), graphs.read_manifest(folder / "shards")


def run_of(job: Job[Any], shard: Shard, door: Door, manifest: Manifest) -> Any:
    """This rank's part of the run: minibatch or full-graph, by its method."""
    if job.method.name in minibatch.METHODS:
        from thinwire.minibatch.run import Run as Sampling

        return Sampling(job, shard, door, manifest, minibatch.Topology.read(manifest.folder))
    from thinwire.fullgraph.run import Run as Whole  # both imports need PyG, which only ranks need

    return Whole(job, shard, door, manifest)


def check(methods: tuple[str, ...], settings: Mapping[str, Any], more: Mapping[str, type]) -> None:
    """Raise if a method or a setting is unknown."""
    options = {**_job_options()}
    for kind in METHODS.values():
        options |= options_of(kind)
    known = {"data": str, **{name: type_in_files(hint) for name, hint in options.items()}, **more}
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"settings.{name} is not known; known are {', '.join(sorted(known))}")
        if type(value) is not known[name]:
            raise ValueError(f"settings.{name} is {value!r}; give {known[name].__name__}")
    for method in methods:
        job_of(method, settings, 0)
