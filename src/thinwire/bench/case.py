"""A case: what to run on which hosts, by which methods. A TOML file, checked before anything starts."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinwire.launch.lab import MOST_HOSTS, parse_rate
from thinwire.links.exchange import LIMIT_S

WORDS = {str: "a string", int: "a whole number", list: "a list of strings", dict: "a table"}
KINDS: dict[str, type] = {
    "workload": str,
    "methods": list,
    "hosts": int,
    "rate": str,
    "rates": list,
    "ranks_per_host": int,
    "repeats": int,
    "seed": int,
    "settings": dict,
}


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
    limit_s: float = LIMIT_S
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
    known = set(KINDS)
    unknown = sorted(set(content) - known)
    if unknown:
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    for key in ("workload", "methods", "hosts"):
        if key not in content:
            raise ValueError(f"{path}: no {key}; a case needs workload, methods and hosts")
    for key, value in content.items():
        # By exact type: true is an int to Python, and a string a sequence of letters.
        if type(value) is not KINDS[key]:
            raise ValueError(f"{path}: {key} is {value!r}; give {WORDS[KINDS[key]]}")
        if isinstance(value, list) and not all(isinstance(each, str) for each in value):
            raise ValueError(f"{path}: {key} is {value!r}; give {WORDS[list]}")
    content["methods"] = tuple(content["methods"])
    content["rates"] = tuple(content.get("rates", ()))
    case = Case(name=path.stem, **content)
    _check(path, case)
    return case


def _check(path: Path, case: Case) -> None:
    if not case.methods or len(set(case.methods)) != len(case.methods):
        raise ValueError(f"{path}: methods is {list(case.methods)}; give at least one, each once")
    for key in ("hosts", "ranks_per_host", "repeats"):
        if getattr(case, key) < 1:
            raise ValueError(f"{path}: {key} is {getattr(case, key)!r}; give 1 or more")
    if case.hosts > MOST_HOSTS:
        raise ValueError(f"{path}: hosts is {case.hosts}; give at most {MOST_HOSTS}")
    if not 0 <= case.seed < 2**63:
        raise ValueError(f"{path}: seed is {case.seed}; give 0 or more, below 2**63")
    if case.rates and len(case.rates) != case.hosts:
        raise ValueError(
            f"{path}: {len(case.rates)} rates for {case.hosts} hosts; give one for each, or `rate` for all"
        )
    for rate in (case.rate, *case.rates):
        try:
            parse_rate(rate)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
