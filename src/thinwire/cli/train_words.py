"""`thinwire train [METHOD] [options]`: parses the method's own options together with those of every method."""

import typing
from collections.abc import Iterator, Sequence
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from thinwire.bench.methods import METHODS
from thinwire.cli.spelling import check_choices, nearest
from thinwire.cli.train import AUTO, Train, method_named
from thinwire.minibatch import Salient
from thinwire.training.method import Method, about, dashed, options_of, value_of, what_it_has

METHOD = "--method"


def train_from(words: Sequence[str]) -> Train:
    """The command with its options, parsed from these words."""
    name, options = _name_and_options(words)
    if name == "" and not options:
        return Train()  # nothing to parse
    kind = None if name == AUTO else method_named(name or _usual(options))
    called = kind if name else None  # without a name, the help is about all methods
    if not {"--help", "-h"} & set(options):
        _expect_options(options, kind)
    check_choices(_hints(kind), options)
    arguments = make_dataclass("Arguments", _fields(kind))
    registry = ConstructorRegistry()
    registry.primitive_rule(_lists)
    parsed: Any = tyro.cli(
        arguments,
        prog=f"thinwire train {called.name}" if called else "thinwire train [METHOD]",
        description=_description(called),
        args=options,
        registry=registry,
    )
    train: Train = parsed.common
    train.method = None if kind is None else parsed.chosen
    return train


def _name_and_options(words: Sequence[str]) -> tuple[str, list[str]]:
    """The method's name, given as the first word or by --method, and the other words."""
    names, options = [], list(words)
    if options and not options[0].startswith("-"):
        names.append(options.pop(0))
    while (at := next((at for at, word in enumerate(options) if word.split("=")[0] == METHOD), None)) is not None:
        _, has_value, value = options.pop(at).partition("=")
        if not has_value:
            if at == len(options):
                raise ValueError(f"{METHOD} has no value; give one of {', '.join((*METHODS, AUTO))}")
            value = options.pop(at)
        names.append(value)
    if len(set(names)) > 1:
        raise ValueError(f"{names[0]} and {METHOD} {names[1]}; give one method, and the other with --against")
    return (names or [""])[0], options


def _usual(options: Sequence[str]) -> str:
    """The method if none is named."""
    text = " ".join(options).replace("=", " ")
    return Salient.name if "--mode minibatch" in text else "exact"


def _expect_options(words: Sequence[str], kind: type[Method] | None) -> None:
    """Raise if an option belongs to another method, or to none."""
    known = {dashed(option.name) for option in fields(Train)} - {METHOD}
    known |= {f"--no-{option.name}" for option in fields(Train) if option.type is bool}
    known |= set() if kind is None else set(map(dashed, options_of(kind)))
    for word in words:
        option = word.split("=")[0].replace("_", "-")
        if not option.startswith("--") or option in known:
            continue
        owners = [other for other in METHODS.values() if option in map(dashed, options_of(other))]
        if not owners:
            raise ValueError(f"train has no option {option}.{nearest(option, [*known, METHOD])}")
        names = ", ".join(owner.name for owner in owners)
        if kind is None:
            raise ValueError(
                f"{option} is an option of {names}; auto compares methods as they usually are: leave {option} out, or "
                "name a method"
            )
        example = f"{owners[0].name} {option} ..."
        raise ValueError(
            f"{option} is an option of {names}; {what_it_has(kind)}. Give `thinwire train {example}`, or to compare "
            f'with it --against "{example}"'
        )


def _hints(kind: type[Method] | None) -> dict[str, Any]:
    return {**typing.get_type_hints(Train), **({} if kind is None else options_of(kind))}


def _fields(kind: type[Method] | None) -> list[tuple[str, Any, Any]]:
    """The method's own options first, then the common ones; none has a prefix."""
    common = ("common", Annotated[Train, tyro.conf.arg(name="")], field(default_factory=Train))
    if kind is None:
        return [common]
    return [("chosen", Annotated[kind, tyro.conf.arg(name="")], field(default_factory=kind)), common]


def _lists(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """tyro's rule for lists: numbers separated by commas, as in all other places."""
    if info.type_origin is not tuple:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="LIST",
        instance_from_str=lambda texts: value_of("list", texts[0], tuple[int, ...], texts[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(map(str, value))],
    )


def _description(kind: type[Method] | None) -> str:
    if kind is not None:
        return f"{kind.__doc__}\n\nIts own options come first, then those of every method."
    methods = "\n\n".join(_listed())
    return f"{Train.__doc__}\n\nMethods, each with its own --help (thinwire train sylvie --help):\n\n{methods}"


def _listed() -> Iterator[str]:
    for name, kind in METHODS.items():
        yield f"{name}: {about(kind)}"
    yield f"{AUTO}: the method predicted to be the fastest here"
