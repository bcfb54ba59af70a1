"""A case: what to run on which hosts, by which methods. A TOML file, checked before anything starts."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from thinwire.launch.lab import parse_rate


@dataclass(frozen=True)
class Case:
    """`settings` belong to the workload; the first method is what the others are compared with."""

    name: str
    workload: str
    methods: tuple[str, ...]
    hosts: int
    rate: str = "1gbit"
    rates: tuple[str, ...] = ()
    ranks_per_host: int = 1
    repeats: int = 5
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


def load_case(path: Path) -> Case:
    """The case in this file; a mistake in it is an error that names the file and the key."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(
            f"{path} does not exist; name a case file, for example benchmarks/cases/exchange.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    known = {each.name for each in fields(Case)} - {"name"}
    unknown = sorted(set(content) - known)
    if unknown:
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    for key, kind in {"workload": str, "methods": list, "hosts": int}.items():
        if not isinstance(content.get(key), kind):
            raise ValueError(f"{path}: {key} is {content.get(key)!r}; give a {kind.__name__}")
    content["methods"] = tuple(content["methods"])
    content["rates"] = tuple(content.get("rates", ()))
    case = Case(name=path.stem, **content)
    _check(path, case)
    return case


def _check(path: Path, case: Case) -> None:
    if not case.methods or len(set(case.methods)) != len(case.methods):
        raise ValueError(f"{path}: methods is {list(case.methods)}; give at least one, each once")
    for key in ("hosts", "ranks_per_host", "repeats"):
        if not isinstance(getattr(case, key), int) or getattr(case, key) < 1:
            raise ValueError(f"{path}: {key} is {getattr(case, key)!r}; give 1 or more")
    if case.rates and len(case.rates) != case.hosts:
        raise ValueError(
            f"{path}: {len(case.rates)} rates for {case.hosts} hosts; give one for each, or `rate` for all"
        )
    for rate in (case.rate, *case.rates):
        try:
            parse_rate(rate)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
