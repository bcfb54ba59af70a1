"""What somebody meant who mistyped: the nearest of the words that there are."""

import difflib
import itertools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union


def nearest(word: str, known: Iterable[str]) -> str:
    """As a question to put behind an error: " Did you mean 'train'?"; nothing where none is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""


def check_choices(hints: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Raise where an option with fixed choices is given something else, and say which is the nearest. By its type."""
    given = [word for argument in arguments for word in argument.split("=", 1)]
    for option, value in itertools.pairwise(given):
        hint = hints.get(option.removeprefix("--").replace("-", "_")) if option.startswith("--") else None
        choices = _choices(hint)
        if choices and value not in choices and not value.startswith("--"):
            raise ValueError(f"{option} {value}; give one of {', '.join(choices)}.{nearest(value, choices)}")


def _choices(hint: Any) -> list[str]:
    """A Literal's, also of one that may be None or stands beside another."""
    if typing.get_origin(hint) is Literal:
        return [str(each) for each in typing.get_args(hint)]
    if typing.get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        found = [_choices(part) for part in parts]
        return [each for own in found for each in own] if all(found) else []
    return []
