"""Loads the module of C++ kernels once. Needs no torch, since `thinwire doctor` uses it too."""

import os
import warnings
from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def native_module() -> ModuleType | None:
    """The module; None, with one warning, if it can't be loaded. `THINWIRE_NATIVE=0` gives None without a warning."""
    if os.environ.get("THINWIRE_NATIVE") == "0":
        return None
    try:
        return import_module("thinwire._native")
    except ImportError as error:
        warnings.warn(
            f"thinwire's native kernels could not be loaded ({error}); the torch twins give the same results, many "
            "times slower. Reinstall thinwire where a C++17 compiler is at hand, or set THINWIRE_NATIVE=0.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
