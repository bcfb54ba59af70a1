"""The module of C++ kernels, loaded once, or None with one warning. Needs no torch: `thinwire doctor` asks too."""

import os
import warnings
from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def native_module() -> ModuleType | None:
    """`THINWIRE_NATIVE=0` turns it off without a word."""
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
