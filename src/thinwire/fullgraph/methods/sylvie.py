"""`sylvie`: messages of few bits a value, stale by one epoch; of differences, less than one bit."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from thinwire.codecs import Budget, Centred, Codec, Nearest, Uniform
from thinwire.fullgraph.methods import staleness
from thinwire.fullgraph.methods.method import Method
from thinwire.training.window import USUAL, Window


@dataclass(frozen=True)
class Sylvie(Method):
    """Few bits a value, unbiased, an epoch stale or at once (Sylvie)."""

    name: ClassVar[str] = "sylvie"
    compared: ClassVar[tuple[str, ...]] = ("sylvie --staleness 0", "sylvie")

    bits: Literal[1, 2, 4, 8] = 1
    """Bits a value."""
    code: Literal["plain", "difference"] = "plain"
    """Rows as they are, unbiased; or what has changed since the reader's copy, so that errors are made up for."""
    budget: float = 0.0
    """Mean bits a value of differences, may be below 1: rows that changed most are sent. (0: all rows, by bits)"""
    staleness: Literal[0, 1] = 1
    """0 synchronous (Sylvie-S), 1 an epoch stale (Sylvie-A)."""
    sync_every: int = 10
    """Every so many-th epoch is synchronous (the paper's epsilon_s); 0 never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        staleness.check(self.sync_every)
        if not 0 <= self.budget <= 8:
            raise ValueError(f"budget is {self.budget}; give mean bits a value up to 8, or 0 to send every row by bits")

    def codec(self) -> Codec:
        if self.sends_differences:
            return Centred(Budget(self.budget) if self.budget else Nearest(self.bits))
        return Uniform(self.bits)

    @property
    def sends_differences(self) -> bool:
        return self.code == "difference" or self.budget > 0

    @property
    def may_be_stale(self) -> bool:
        return self.staleness == 1

    @property
    def gentleness(self) -> int:
        return 4 if self.may_be_stale else 2

    def is_stale(self, epoch: int) -> bool:
        return self.may_be_stale and staleness.is_stale(epoch, self.sync_every)

    def window(self) -> Window:
        return staleness.window(self.sync_every) if self.may_be_stale else USUAL
