"""A method: what crosses the wire, and when. Words make it ("sylvie --bits 2"), and it makes the words again. Pure.

Options are the fields of its dataclass: names, types, defaults and help (the docstrings below them) stand there only.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeVar

KIND_WORDS = {int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True)
class Method:
    """Abstract. A final one is a frozen dataclass with its own options, and its name."""

    name: ClassVar[str]
    # As which words `thinwire plan` compares it, where nothing is said.
    compared: ClassVar[tuple[str, ...]] = ()
    # Options of a job that have an effect with few methods, this one among them.
    heeds: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for option, hint in options_of(type(self)).items():
            if typing.get_origin(hint) is Literal and getattr(self, option) not in typing.get_args(hint):
                raise ValueError(f"{option} is {getattr(self, option)!r}; {_what_works(hint)}")

    @property
    def may_be_stale(self) -> bool:
        """Whether gradients may be an epoch's late."""
        return False

    @property
    def gentleness(self) -> int:
        """Of two methods that are about as fast the one with less changes training less; `exact` has 0."""
        return 9

    def for_layers(self, layers: int) -> Self:
        """What a run with so many layers takes it for."""
        return self

    def words(self) -> str:
        """The shortest that make it again: its name, and the options that are not as usual."""
        options = {field.name: field.default for field in fields(self)}
        given = {name: getattr(self, name) for name, usual in options.items() if getattr(self, name) != usual}
        return " ".join([self.name, *(f"{dashed(name)} {_as_word(value)}" for name, value in given.items())])

    def to_json(self) -> dict[str, Any]:
        return {"method": self.name, **asdict(self)}


M = TypeVar("M", bound=Method)


def options_of(kind: type[Method]) -> Mapping[str, Any]:
    """A method's options by name, with their types."""
    hints = typing.get_type_hints(kind)
    return types.MappingProxyType({field.name: hints[field.name] for field in fields(kind)})


def about(kind: type[Method]) -> str:
    """A method in a line."""
    return (kind.__doc__ or "").partition("\n")[0].rstrip(".")


def dashed(option: str) -> str:
    """As it is typed: `--sync-every`."""
    return f"--{option.replace('_', '-')}"


def parse(words: str, methods: Mapping[str, type[M]]) -> M:
    """The method that these words make."""
    name, options = split(words)
    return made(methods[known_name(name, methods)], options, words)


def known_name(name: str, methods: Mapping[str, Any]) -> str:
    if name not in methods:
        raise ValueError(f"there is no method {name!r}; give one of {', '.join(methods)}")
    return name


def split(words: str) -> tuple[str, dict[str, str]]:
    """A name, and values by option: of `sylvie --sync-every 5` the values {"sync_every": "5"}."""
    name, *rest = words.split() or [""]
    options: dict[str, str] = {}
    upcoming = iter(rest)
    for word in upcoming:
        option, has_value, value = word.partition("=")
        if not option.startswith("--"):
            raise ValueError(f"{words!r}: {word} follows no option; write options like {name} --option value")
        if (not has_value and (value := next(upcoming, "")).startswith("--")) or not value:
            raise ValueError(f"{words!r}: {option} has no value")
        options[option.removeprefix("--").replace("-", "_")] = value
    return name, options


def made(kind: type[M], options: Mapping[str, str], words: str) -> M:
    """A method of this class with these options; `words` is where they come from, for errors."""
    known = options_of(kind)
    for option in options:
        if option not in known:
            raise ValueError(f"{words!r}: there is no {dashed(option)}; {what_it_has(kind)}")
    return kind(**{option: value_of(option, text, known[option], words) for option, text in options.items()})


def what_it_has(kind: type[Method]) -> str:
    """The options of a method, for an error."""
    return f"{kind.name} has {', '.join(map(dashed, options_of(kind))) or 'no options'}"


def value_of(option: str, text: str, hint: Any, words: str) -> Any:
    """An option's value from a word."""
    if typing.get_origin(hint) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(hint)}
        if text in choices:
            return choices[text]
    else:
        try:
            return tuple(map(int, text.split(","))) if _is_list(hint) else hint(text)
        except ValueError:
            pass
    raise ValueError(f"{words!r}: {dashed(option)} {text}; {_what_works(hint)}")


def type_in_files(hint: Any) -> type:
    """What a TOML file has for an option of this type: lists are written as words, like "15,10,5"."""
    if typing.get_origin(hint) is Literal:
        return type(typing.get_args(hint)[0])
    return str if _is_list(hint) else hint


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _what_works(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return f"give one of {', '.join(str(choice) or repr(choice) for choice in typing.get_args(hint))}"
    return f"give {'whole numbers with commas between, like 2,4,8' if _is_list(hint) else KIND_WORDS[hint]}"


def _as_word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
