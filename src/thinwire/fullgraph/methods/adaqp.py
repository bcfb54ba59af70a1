"""`adaqp`: bits for each message, chosen again after each period of epochs (AdaQP, arXiv 2306.01381).

This file says what each epoch does; `trace.py` measures rows, and `assign.py` chooses bits by what was measured.
"""

from __future__ import annotations  # `Assigner` and `Trace` are only names here: their modules import this one

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from thinwire.codecs import Codec, Identity, Mixed, Uniform
from thinwire.fullgraph.methods import staleness
from thinwire.fullgraph.methods.method import Method
from thinwire.training.window import USUAL, WARM, Window, even

if TYPE_CHECKING:
    from thinwire.fullgraph.assigner import Assigner
    from thinwire.fullgraph.trace import Trace
    from thinwire.graphs import Shard
    from thinwire.links import Door
    from thinwire.links.cost import CostModel

# The bits of all rows in the first period; later, of rows of 0 bits in epochs that send all rows.
FIRST_BITS = 8


@dataclass(frozen=True)
class AdaQP(Method):
    """Bits chosen for each message by its variance and the wires, at once (AdaQP)."""

    name: ClassVar[str] = "adaqp"
    compared: ClassVar[tuple[str, ...]] = ("adaqp",)
    heeds: ClassVar[tuple[str, ...]] = ("profile",)

    bits_choice: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    """What to choose a message's bits from; 0 is not sent, the receiver keeps its copy."""
    assign: Literal["trade", "hide", "random"] = "trade"
    """Variance against time; or the most bits that hide behind computation; or any."""
    assign_every: int = 50
    """Epochs between choices."""
    balance: float = 0.5
    """1 counts variance alone, 0 time alone (the paper's lambda)."""
    weigh: Literal["squares", "published", "gradient"] = "squares"
    """A message counts by its aggregation weights; or as in the published code; or by its gradient."""
    only: Literal["", "quantize", "overlap"] = ""
    """Without overlap, or without few bits. (both)"""
    sync_every: int = 10
    """Every so many-th epoch sends every row; 0 never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bits_choice", tuple(sorted(set(self.bits_choice))))
        staleness.check(self.sync_every)
        Mixed(self.bits_choice)
        if not any(self.bits_choice):
            raise ValueError(f"bits_choice is {list(self.bits_choice)}; give some of 1, 2, 4, 8, 16 and 32")
        if 0 in self.bits_choice and self.sync_every == 0:
            raise ValueError(
                "bits_choice has 0 (not sent) and sync_every is 0: such a row would never be sent again; leave 0 out, "
                "or give sync_every"
            )
        if self.assign_every < 1:
            raise ValueError(f"assign_every is {self.assign_every}; give 1 or more epochs")
        if not 0 <= self.balance <= 1:
            raise ValueError(f"balance is {self.balance}; give 0 (time alone) to 1 (variance alone)")

    def codec(self) -> Codec:
        return Uniform(FIRST_BITS) if self.adapts else Identity()

    @property
    def gentleness(self) -> int:
        return 1

    @property
    def overlaps(self) -> bool:
        return self.only != "quantize"

    @property
    def keeps_rows(self) -> bool:
        return self.adapts and 0 in self.bits_choice

    def sends_all(self, epoch: int) -> bool:
        """Whether the epoch sends every row: each `sync_every`-th does, and the first one after each choice of bits."""
        return self.adapts and (staleness.is_nth(epoch, self.sync_every) or epoch % self.assign_every == 0)

    def trace(self) -> Trace | None:
        from thinwire.fullgraph.trace import Trace

        return Trace(self) if self.adapts else None

    def assigner(self, door: Door, shard: Shard, cost: CostModel | None, seed: int) -> Assigner | None:
        from thinwire.fullgraph.assign import BitAssigner

        return BitAssigner(door, self, cost, shard.x.device, seed) if self.adapts else None

    def window(self) -> Window:
        """Measured from the choice of bits on. The first epoch after it sends all rows."""
        if not self.adapts:
            return USUAL
        warm = WARM + self.mean_age
        begin = math.ceil(warm / self.assign_every) * self.assign_every
        share = self.share_that_sends_all(self.assign_every)
        return Window(begin - warm, warm, [share, *even(1 - share)])

    @property
    def adapts(self) -> bool:
        """Whether bits are chosen at all."""
        return self.only != "overlap"

    def assigns(self, epoch: int) -> bool:
        """Whether bits are chosen anew after this epoch."""
        return self.adapts and self._to_assign(epoch) == 0

    @property
    def looks(self) -> bool:
        """Whether rows are traced, to choose bits by their variance."""
        return self.adapts and self.assign != "random" and len(self.bits_choice) > 1

    def traces(self, epoch: int) -> bool:
        """Whether rows are traced: in the last epoch of a period, whose rows are most like those of the next."""
        return self.looks and self.assigns(epoch)

    def remembers(self, epoch: int) -> bool:
        """Whether a copy of the rows is kept, to measure at the period's end how far they move within `mean_age`."""
        return self.looks and 0 in self.bits_choice and 0 < self.mean_age == self._to_assign(epoch)

    @property
    def mean_age(self) -> int:
        """Mean age in epochs of the receiver's copy of a row that is not sent; 0 if every epoch sends all rows."""
        return max(1, self.all_sent_every // 2) if self.all_sent_every > 1 else 0

    @property
    def all_sent_every(self) -> int:
        """Epochs from one that sends all rows to the next."""
        return min(self.sync_every, self.assign_every)

    def share_that_sends_all(self, epoch: int) -> float:
        """The share of epochs that send all rows, in a period that begins with this one."""
        return sum(self.sends_all(epoch + age) for age in range(self.assign_every)) / self.assign_every

    def _to_assign(self, epoch: int) -> int:
        """Epochs between this one and the last of its period."""
        return self.assign_every - 1 - epoch % self.assign_every
