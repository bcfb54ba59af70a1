"""What a run of full-graph training obeys: the method, its codec, and which epochs are synchronous. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

from thinwire.codecs import Codec, Identity, Uniform

METHODS = ("exact", "pipe", "sylvie")
# Sylvie's bounded staleness, where nothing is said.
SYNC_EVERY = 10


@dataclass(frozen=True)
class Plan:
    """`exact`: float32, synchronous. `pipe`: float32, one epoch stale (PipeGCN). `sylvie`: few bits, stale or not."""

    method: str = "exact"
    bits: int = 1  # sylvie: of a message's values
    staleness: int = 1  # sylvie: 0 synchronous (Sylvie-S), 1 pipelined (Sylvie-A)
    sync_every: int | None = None  # epsilon_s: every so many-th epoch is synchronous, 0 never; sylvie 10, pipe 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; give one of {', '.join(METHODS)}")
        if self.staleness not in (0, 1):
            raise ValueError(f"staleness is {self.staleness}; give 0 (synchronous) or 1 (one epoch stale)")
        if self.sync_every is None:
            object.__setattr__(self, "sync_every", SYNC_EVERY if self.method == "sylvie" else 0)
        assert self.sync_every is not None
        if self.sync_every < 0:
            raise ValueError(f"sync_every is {self.sync_every}; give 0 (never) or more")
        self.codec()

    def codec(self) -> Codec:
        return Uniform(self.bits) if self.method == "sylvie" else Identity()

    @property
    def may_be_stale(self) -> bool:
        return self.method == "pipe" or (self.method == "sylvie" and self.staleness == 1)

    def is_stale(self, epoch: int) -> bool:
        """Sylvie's bounded staleness adaptor. The first epoch is synchronous, so that no halo starts from zeros."""
        if not self.may_be_stale or epoch == 0:
            return False
        return not self.sync_every or (epoch + 1) % self.sync_every != 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
