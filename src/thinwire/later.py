"""Names of a package that are imported only when they are first used.

torch takes two seconds to import and PyG two more: code that uses one name of a package does not wait for the rest.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def offered(package: str, where: Mapping[str, str], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """A package's `__getattr__`. `where` has the module of each name; `modules` are the package's own modules."""

    def attribute(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")  # the import also sets the attribute
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[package], name, value)  # later uses do not come here
        return value

    return attribute
