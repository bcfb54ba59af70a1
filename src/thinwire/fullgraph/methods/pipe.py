"""`pipe`: float32 messages of the epoch before (PipeGCN, arXiv 2203.10428)."""

from dataclasses import dataclass
from typing import ClassVar

from thinwire.fullgraph.methods import staleness
from thinwire.fullgraph.methods.method import Method
from thinwire.training.window import Window


@dataclass(frozen=True)
class Pipe(Method):
    """Float32, an epoch stale (PipeGCN)."""

    name: ClassVar[str] = "pipe"
    compared: ClassVar[tuple[str, ...]] = ("pipe",)

    sync_every: int = 0
    """Every so many-th epoch is synchronous; 0 never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        staleness.check(self.sync_every)

    @property
    def may_be_stale(self) -> bool:
        return True

    @property
    def gentleness(self) -> int:
        return 3

    def is_stale(self, epoch: int) -> bool:
        return staleness.is_stale(epoch, self.sync_every)

    def window(self) -> Window:
        return staleness.window(self.sync_every)
