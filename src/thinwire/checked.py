"""Converts the content of JSON and TOML files to typed values: strictly, or with values that do not fit left out.

A type is a dataclass or a msgspec.Struct, of numbers, strings, tables and lists (docs/decisions/0020-checked-json.md).
Unknown keys are ignored, since newer versions write more keys, unless the Struct forbids them.
"""

import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

T = TypeVar("T")

Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # finite
Positive = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]

WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "a string",
}
MISSING = object()


def strictly(content: Any, kind: type[T]) -> T:
    """The content as a value of this type. A ValueError names the key, its value and what would fit."""
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(_explained(str(error), content, kind)) from None


def leniently(content: Any, kind: type[T]) -> T | None:
    """The content as a value of this type, with the default for each field that is missing or does not fit.

    Items of lists and entries of tables that do not fit are left out. A Struct does not fit if one of its fields
    without a default does not. If the whole content does not fit, the result is None.
    """
    value = _fitting(content, kind)
    return None if value is MISSING else value


def _fitting(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError:
        pass
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _fitting_fields(value, kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        items = (_fitting(item, arguments[0]) for item in (value if isinstance(value, list) else ()))
        return tuple(item for item in items if item is not MISSING)
    if origin in (dict, Mapping):
        return _fitting_entries(value if isinstance(value, dict) else {}, *arguments)
    return MISSING


def _fitting_fields(value: Any, kind: type[msgspec.Struct]) -> Any:
    fields = msgspec.structs.fields(kind)
    if kind.__struct_config__.array_like and isinstance(value, list):
        value = dict(zip((field.encode_name for field in fields), value, strict=False))
    if not isinstance(value, dict):
        return MISSING
    fitting = {}
    for field in fields:
        item = _fitting(value[field.encode_name], field.type) if field.encode_name in value else MISSING
        if item is not MISSING:
            fitting[field.name] = item
        elif field.required:
            return MISSING
    return kind(**fitting)


def _fitting_entries(table: Mapping[str, Any], key_kind: Any, item_kind: Any) -> dict[Any, Any]:
    fitting = {}
    for name, content in table.items():
        try:
            (key,) = msgspec.convert({name: None}, dict[key_kind, None], str_keys=True)
        except msgspec.ValidationError:
            continue
        item = _fitting(content, item_kind)
        if item is not MISSING:
            fitting[key] = item
    return fitting


def _explained(message: str, content: Any, kind: type) -> str:
    """msgspec's message in our words, with the value, which msgspec omits: "hosts is 0; give a whole number >= 1"."""
    message, _, place = message.partition(" - at ")
    path = place.split("`$")[-1].rstrip("`")
    name = path.removeprefix(".") or "it"
    if match := re.fullmatch(r"Object missing required field `(\w+)`", message):
        return f"{name} has no {match[1]!r}"
    if match := re.fullmatch(r"Object contains unknown field `(\w+)`", message):
        known = ", ".join(sorted(field.encode_name for field in msgspec.structs.fields(kind)))
        return f"unknown key {match[1]!r}; known are {known}"
    message = re.sub(r", got `\w+`$", "", message).removeprefix("Expected ")
    wanted = re.sub(r"`(\w+)`", lambda word: WORDS.get(word[1], word[1]), message)
    if "[...]" in path or place.startswith("`key`"):  # msgspec does not tell which entry of the table
        return f"{name} is of another kind; give {wanted}"
    for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        content = content[key] if key else content[int(number)]
    return f"{name} is {_short(content)}; give {wanted}"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
