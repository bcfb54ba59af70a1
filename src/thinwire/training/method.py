"""A method: what crosses the wire, and when. It is parsed from words ("sylvie --bits 2") and written as words. Pure.

Options are the fields of its dataclass: names, types, defaults and help (the docstrings below them) stand only there.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeVar

KIND_WORDS = {int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True)
class Method:
    """Abstract. Each final class is a frozen dataclass with a name and its own options."""

    name: ClassVar[str]
    # The words by which `thinwire plan` compares this method by default.
    compared: ClassVar[tuple[str, ...]] = ()
    # Job options that have an effect with this method, but not with most others.
    heeds: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for option, hint in options_of(type(self)).items():
            if typing.get_origin(hint) is Literal and getattr(self, option) not in typing.get_args(hint):
                raise ValueError(f"{option} is {getattr(self, option)!r}; {_what_works(hint)}")

    @property
    def may_be_stale(self) -> bool:
        """Whether gradients may be an epoch old."""
        return False

    @property
    def gentleness(self) -> int:
        """How much the method changes training: 0 for `exact`. Of two equally fast methods the lower one is chosen."""
        return 9

    def for_layers(self, layers: int) -> Self:
        """This method as a run with this number of layers uses it."""
        return self

    def words(self) -> str:
        """The shortest words that `parse` turns into this method: its name, and options that differ from defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        changed = {name: getattr(self, name) for name, usual in defaults.items() if getattr(self, name) != usual}
        return " ".join([self.name, *(f"{dashed(name)} {_as_word(value)}" for name, value in changed.items())])

    def to_json(self) -> dict[str, Any]:
        return {"method": self.name, **asdict(self)}


M = TypeVar("M", bound=Method)


def options_of(kind: type[Method]) -> Mapping[str, Any]:
    """A method's options by name, with their types."""
    hints = typing.get_type_hints(kind)
    return types.MappingProxyType({field.name: hints[field.name] for field in fields(kind)})


def about(kind: type[Method]) -> str:
    """The first line of the method's docstring, without its full stop."""
    return (kind.__doc__ or "").partition("\n")[0].rstrip(".")


def dashed(option: str) -> str:
    """The option as a user types it: `--sync-every`."""
    return f"--{option.replace('_', '-')}"


def parse(words: str, methods: Mapping[str, type[M]]) -> M:
    """The method that these words describe."""
    name, options = split(words)
    return made(methods[known_name(name, methods)], options, words)


def known_name(name: str, methods: Mapping[str, Any]) -> str:
    if name not in methods:
        raise ValueError(f"there is no method {name!r}; give one of {', '.join(methods)}")
    return name


def split(words: str) -> tuple[str, dict[str, str]]:
    """The name and the options by name: `sylvie --sync-every 5` gives "sylvie" and {"sync_every": "5"}."""
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
    """A method of this class with these options. Errors quote `words`, from which the options were read."""
    known = options_of(kind)
    for option in options:
        if option not in known:
            raise ValueError(f"{words!r}: there is no {dashed(option)}; {what_it_has(kind)}")
    return kind(**{option: value_of(option, text, known[option], words) for option, text in options.items()})


def what_it_has(kind: type[Method]) -> str:
    """The options of a method, in words for an error."""
    return f"{kind.name} has {', '.join(map(dashed, options_of(kind))) or 'no options'}"


def value_of(option: str, text: str, hint: Any, words: str) -> Any:
    """Read an option's value from a word."""
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
    """The type by which a TOML file gives this option: lists are written as strings, like "15,10,5"."""
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
