"""Values out of JSON that may lack them or hold something else: what is not of its kind counts as missing."""

import math
from collections.abc import Mapping
from typing import Any


def number(value: Any) -> float | None:
    """A finite one. true is none; NaN, which Python reads, could not be drawn or written again."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond floats
        return None


def amount(value: Any) -> float:
    """A number that counts as 0 where it is missing."""
    return number(value) or 0.0


def count(value: Any) -> int | None:
    """A whole number from 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def by_number(value: Any) -> dict[int, float]:
    """{"2": 1234} with numbers as keys."""
    found = {}
    for name, each in table(value).items():
        if name.isascii() and name.isdigit() and len(name) < 16 and (size := number(each)) is not None:
            found[int(name)] = size
    return found
