"""Names that a package offers before it has imported them.

torch takes two seconds to import and PyG two more: who asks a package for one name does not wait for the rest of it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def offered(package: str, where: Mapping[str, str], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """A package's `__getattr__`; `where` says in which module each name is, `modules` are the package's own."""

    def attribute(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")  # which sets the attribute
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[package], name, value)  # from now on without us
        return value

    return attribute
