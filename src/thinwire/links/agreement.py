"""Check that all ranks were started alike: where they differ, they would hang, or train something else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thinwire.links.exchange import Door

CHANNEL = "agreement"
# An error shows so much of a value.
MOST_LETTERS = 60


class Disagreement(ValueError):
    """Ranks were started with different things. The message names the ranks, what differs, and what to do."""


@dataclass(frozen=True)
class Fact:
    """A value, or several by name, and what to do where ranks have different ones."""

    value: Any
    remedy: str


def expect_same(door: Door, facts: Mapping[str, Fact]) -> None:
    """Raise Disagreement, the same on every rank, unless all have the same values. All ranks call it."""
    mine = {name: fact.value for name, fact in facts.items()}
    by_rank = [_flat(values) for values in door.gather_json(mine, channel=CHANNEL)]
    for name in dict.fromkeys(name for values in by_rank for name in values):
        holders: dict[str, list[int]] = {}
        for rank, values in zip(door.ranks, by_rank, strict=True):
            holders.setdefault(values.get(name, "none"), []).append(rank)
        if len(holders) > 1:
            said = ", ".join(f"{_ranks(ranks)} {_short(value)}" for value, ranks in holders.items())
            fact = facts.get(name.partition(".")[0])
            raise Disagreement(f"ranks have different {name}: {said}; {fact.remedy if fact else 'start all alike'}")


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Values by dotted names, as text."""
    if not isinstance(value, dict):
        return {name: value if isinstance(value, str) else json.dumps(value)}
    flat: dict[str, str] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else key)
    return flat


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."
