"""`exact`: float32 messages, waited for in the same epoch."""

from dataclasses import dataclass
from typing import ClassVar

from thinwire.fullgraph.methods.method import Method


@dataclass(frozen=True)
class Exact(Method):
    """Float32, at once: equals training in one process."""

    name: ClassVar[str] = "exact"
    compared: ClassVar[tuple[str, ...]] = ("exact",)

    @property
    def gentleness(self) -> int:
        return 0
