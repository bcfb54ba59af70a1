"""A case: what to run, on which hosts, with which methods. A TOML file, checked before anything starts."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from thinwire.checked import strictly
from thinwire.launch.lab import MOST_HOSTS, parse_rate
from thinwire.links.exchange import LIMIT_S


@dataclass(frozen=True)
class Case:
    """`settings` belong to the workload. All methods are compared with the first."""

    name: str
    workload: str
    methods: tuple[str, ...]
    hosts: Annotated[int, Meta(ge=1, le=MOST_HOSTS)]
    rate: str = "1gbit"
    rates: tuple[str, ...] = ()
    ranks_per_host: Annotated[int, Meta(ge=1)] = 1
    repeats: Annotated[int, Meta(ge=1)] = 5
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    limit_s: float = LIMIT_S
    settings: Mapping[str, Any] = field(default_factory=dict)


def load_case(path: Path) -> Case:
    """Read a case from a file. Errors name the file and the key."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(
            f"{path} does not exist; name a case file, for example benchmarks/cases/exchange.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    # The name and the limit come from the file name and the command line.
    known = {key.name for key in fields(Case)} - {"name", "limit_s"}
    if unknown := sorted(set(content) - known):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    try:
        case = strictly({"name": path.stem, **content}, Case)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _check(path, case)
    return case


def _check(path: Path, case: Case) -> None:
    if not case.methods or len(set(case.methods)) != len(case.methods):
        raise ValueError(f"{path}: methods is {list(case.methods)}; give at least one, each once")
    if case.rates and len(case.rates) != case.hosts:
        raise ValueError(
            f"{path}: {len(case.rates)} rates for {case.hosts} hosts; give one for each, or `rate` for all"
        )
    for rate in (case.rate, *case.rates):
        try:
            parse_rate(rate)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
