r"""`sylvie3d`: bits by degree, their base by the loss, staleness by the base (Sylvie, 3D-adaptive, ICDE 2024).

- *Data*: a channel is the rows that one rank reads from another, in a layer and a direction. A row's importance is the
  share of its channel's rows whose in-degree in the whole graph is at most its own. Equal parts of that range get
  base, 2 base, ... 8 bits: quarters 1/2/4/8 at base 1, thirds 2/4/8, halves 4/8, and 8 at base 8. Both ends know the
  degrees, so no widths are sent. Degrees do not differ by layer and direction, and neither do the bits of a row.
- *Time*: :math:`m_t = 0.9 m_{t-1} + 0.1 L_t` smooths the loss, and :math:`v_t = |m_t - m_{t-1}| / s_t` is its speed.
  If v never rises within 5 epochs, the base doubles; if it never falls, it halves; if it is flat, nothing changes.
- *Execution*: a base that rose is waited for at once, one that fell lets messages be an epoch stale.

The clock s_t is 1 by default: speed by epoch, so that runs repeat and resume bit for bit. As published it is the
seconds of rank 0's epoch, which no second run has. This file is pure: `adapter.py` has ranks agree.
"""

from __future__ import annotations  # `Assigner` is only a name here: its module imports this one

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from thinwire.codecs import Codec, Uniform
from thinwire.fullgraph.methods import staleness
from thinwire.fullgraph.methods.method import Method
from thinwire.training.window import USUAL, Window

if TYPE_CHECKING:
    from thinwire.fullgraph.assigner import Assigner
    from thinwire.graphs import Shard
    from thinwire.links import Door
    from thinwire.links.cost import CostModel

WIDTHS = (1, 2, 4, 8)
OLD, NEW = 0.9, 0.1
# Numbers of epochs: the first ones, whose speed does not count, and those by whose speeds the base changes.
SKIPPED, LOOKED_AT = 5, 5


@dataclass(frozen=True)
class Sylvie3D(Method):
    """Bits by degree, more or fewer as the loss slows or speeds up (Sylvie 3D-adaptive)."""

    name: ClassVar[str] = "sylvie3d"

    base: Literal[1, 2, 4, 8] = 1
    """Bits a value of the rows of the lowest degrees, to begin with; others get up to 8."""
    clock: Literal["epochs", "seconds"] = "epochs"
    """The loss's speed is by epoch, so that runs repeat; or by second, as published."""
    staleness: Literal[0, 1] = 1
    """1: an epoch stale, until the base rises; 0: always at once."""
    sync_every: int = 10
    """Every so many-th epoch is synchronous; 0 only those that begin a change."""

    def __post_init__(self) -> None:
        super().__post_init__()
        staleness.check(self.sync_every)

    def codec(self) -> Codec:
        return Uniform(self.base)

    def message_bytes(self, num_rows: int, width: int) -> int:
        """At the first base, if no two degrees are equal."""
        widths = widths_from(self.base)
        return sum(Uniform(bits).nbytes((num_rows, width)) for bits in widths) // len(widths)

    @property
    def may_be_stale(self) -> bool:
        return self.staleness == 1

    @property
    def gentleness(self) -> int:
        return 4 if self.may_be_stale else 2

    def is_stale(self, epoch: int) -> bool:
        """As long as the base has not changed."""
        return self.may_be_stale and staleness.is_stale(epoch, self.sync_every)

    def assigner(self, door: Door, shard: Shard, cost: CostModel | None, seed: int) -> Assigner | None:
        from thinwire.fullgraph.adapter import Adapter

        return Adapter(door, shard, self) if door.world_size > 1 else None

    def window(self) -> Window:
        """At the first base: it lasts for longer than what is noted."""
        return staleness.window(self.sync_every) if self.may_be_stale else USUAL


def widths_from(base: int) -> tuple[int, ...]:
    """The bits that rows may have, from those of the lowest degrees on."""
    return tuple(bits for bits in WIDTHS if bits >= base)


def bits_by_degree(in_degree: Tensor, base: int) -> Tensor:
    """The bits of each row of a channel, by the place of its in-degree among them: uint8."""
    widths = torch.tensor(widths_from(base), dtype=torch.uint8)
    in_order, rows = in_degree.cpu().contiguous().sort().values, len(in_degree)
    at_most = torch.searchsorted(in_order, in_degree.cpu().contiguous(), right=True)  # rows of no higher degree
    return widths[(at_most * len(widths) // max(1, rows)).clamp_(max=len(widths) - 1)]


@dataclass
class Speed:
    """The speed of the smoothed loss in the last epochs."""

    smoothed: float | None = None
    num_losses: int = 0
    last: list[float] = field(default_factory=list)

    def add(self, loss: float, elapsed: float) -> None:
        """Add an epoch. `elapsed`: how long it took."""
        self.num_losses += 1
        before = loss if self.smoothed is None else self.smoothed
        self.smoothed = OLD * before + NEW * loss
        if self.num_losses > SKIPPED:
            self.last = [*self.last, abs(self.smoothed - before) / elapsed][-LOOKED_AT:]

    def base(self, base: int) -> int:
        """The base for the next epoch. After a change, as many epochs are looked at again."""
        if len(self.last) < LOOKED_AT:
            return base
        never_rises = all(after <= before for before, after in pairwise(self.last))
        never_falls = all(after >= before for before, after in pairwise(self.last))
        if never_rises and not never_falls:
            chosen = min(2 * base, WIDTHS[-1])
        elif never_falls and not never_rises:
            chosen = max(base // 2, WIDTHS[0])
        else:
            chosen = base
        if chosen != base:
            self.last = []
        return chosen

    def to_json(self) -> dict[str, Any]:
        return {"smoothed": self.smoothed, "num_losses": self.num_losses, "last": self.last}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Speed:
        return cls(content["smoothed"], content["num_losses"], list(content["last"]))
