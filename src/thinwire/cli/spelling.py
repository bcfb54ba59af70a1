"""Suggestions for mistyped words: the nearest known word."""

import difflib
import itertools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union


def nearest(word: str, known: Iterable[str]) -> str:
    """A question to append to an error: " Did you mean 'train'?"; empty if no known word is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def check_choices(hints: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Raise if an option with fixed choices has another value, and suggest the nearest. `hints`: types by option."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for option, value in itertools.pairwise(words):
        hint = hints.get(option.removeprefix("--").replace("-", "_")) if option.startswith("--") else None
        choices = _choices(hint)
        if choices and value not in choices and not value.startswith("--"):
            raise ValueError(f"{option} {value}; give one of {', '.join(choices)}.{nearest(value, choices)}")


def _choices(hint: Any) -> list[str]:
    """The choices of a Literal, or of a union of Literals and None; else none."""
    if typing.get_origin(hint) is Literal:
        return [str(choice) for choice in typing.get_args(hint)]
    if typing.get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        by_part = [_choices(part) for part in parts]
        return [choice for choices in by_part for choice in choices] if all(by_part) else []
    return []
