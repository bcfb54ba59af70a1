"""Workload `exchange`: every rank sends its rows to all others through a codec. Methods are codecs: uniform:1, ..."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.bench import columns
from thinwire.bench.case import Case
from thinwire.codecs import seed_from
from thinwire.codecs.spec import parse_codec
from thinwire.links import Door

KNOWN = {"rows", "width"}
COLUMNS, CAPTION = columns.USUAL, columns.CAPTION


def check(methods: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    """Raise if a method is not a codec, or a setting is unknown."""
    for method in methods:
        parse_codec(method)
    unknown = sorted(set(settings) - KNOWN)
    if unknown:
        raise ValueError(f"settings.{unknown[0]} is not known to exchange; known are {', '.join(sorted(KNOWN))}")
    for name, value in settings.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"settings.{name} is {value!r}; give a whole number, 1 or more")


def set_up(case: Case, folder: Path) -> None:
    """Nothing to do: ranks make their own rows."""


def prepare(door: Door, case: Case, folder: Path) -> Tensor:
    """The rows to send. Making them is not timed."""
    shape = (case.settings.get("rows", 1000), case.settings.get("width", 256))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed_from(case.seed, door.rank)))


def units(method: str, settings: Mapping[str, Any]) -> int:
    return 1


def step(door: Door, method: str, x_ND: Tensor, case: Case, seed: int) -> dict[str, Any]:
    """Encode, exchange and decode once."""
    codec = parse_codec(method)
    n, me = door.world_size, door.rank
    sizes = [0 if peer == me else codec.nbytes(x_ND.shape) for peer in range(n)]
    # Messages to all peers are encoded into one buffer, from which they are sent.
    parts = list(torch.split(torch.empty(sum(sizes), dtype=torch.uint8), sizes))
    for peer, part in enumerate(parts):
        if peer != me:
            codec.encode(x_ND, seed=seed_from(seed, peer), out=part)
    for peer, data in enumerate(door.all_to_all(parts, sizes, channel="exchange").wait()):
        if peer != me:
            codec.decode(data, x_ND.shape, seed=seed_from(seed, me))
    return {}
