"""Measure links: what `thinwire profile` runs on every rank."""

from dataclasses import asdict
from typing import Any

from thinwire.links import Door
from thinwire.links.probe import probe


def profile(check_draws: int, seed: int, limit_s: float) -> dict[str, Any]:
    """The cost model as JSON and, with `check_draws`, rows of predicted and measured times."""
    with Door(limit_s=limit_s) as door:
        model, rows = probe(door, draws=check_draws, seed=seed)
    return {**model.to_json(), "check": [{**asdict(row), "error": row.error} for row in rows]}
