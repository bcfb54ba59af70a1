"""The option `--limit`, which every command has whose ranks wait for each other."""

from typing import Annotated

import tyro

from thinwire.links.exchange import LIMIT_S

Limit = Annotated[
    float,
    tyro.conf.arg(
        metavar="SECONDS",
        help="A rank that keeps others waiting for longer counts as lost, and all ranks end. Loading has no limit.",
    ),
]
USUAL = LIMIT_S


def check(limit: float) -> None:
    if not 1 <= limit < float("inf"):
        raise ValueError(f"--limit is {limit:g}; give seconds, 1 or more")
