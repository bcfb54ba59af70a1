"""The base class of methods of full-graph training. Pure: a method knows epochs and codecs, and no network."""

from __future__ import annotations  # `Assigner` and `Trace` are only names here: their modules import this one

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.codecs import Codec, Identity
from thinwire.training.method import Method as AnyMethod
from thinwire.training.window import USUAL, Window

if TYPE_CHECKING:
    from thinwire.fullgraph.assigner import Assigner
    from thinwire.fullgraph.trace import Trace
    from thinwire.graphs import Shard
    from thinwire.links import Door
    from thinwire.links.cost import CostModel


@dataclass(frozen=True)
class Method(AnyMethod):
    """Abstract. The defaults are those of float32 messages that are waited for in the same epoch."""

    def codec(self) -> Codec:
        """The codec of all messages, until an assigner chooses others."""
        return Identity()

    def draw(self, num_rows: int, seed: int) -> Codec | None:
        """The codec of an epoch's message, drawn from a seed that sender and receiver know. None: nothing is drawn.

        Called once an epoch for each ordered pair of ranks. The codec serves all layers, and gradients on the way back.
        """
        return None

    def message_bytes(self, num_rows: int, width: int) -> int:
        """The bytes of a message with `codec`; for methods that draw, in the mean."""
        return self.codec().nbytes((num_rows, width))

    @property
    def sends_differences(self) -> bool:
        """Whether messages are differences to the rows that the receiver holds."""
        return False

    @property
    def overlaps(self) -> bool:
        """Whether computation goes on while rows travel."""
        return True

    @property
    def keeps_rows(self) -> bool:
        """Whether an epoch may need rows that an earlier one received."""
        return self.may_be_stale or self.sends_differences

    def is_stale(self, epoch: int) -> bool:
        """Whether the epoch uses rows that were sent an epoch before, while its own are under way."""
        return False

    def sends_all(self, epoch: int) -> bool:
        """Whether the epoch also sends the rows that other epochs leave out."""
        return False

    def trace(self) -> Trace | None:
        """A trace for a wire, if codecs are chosen by its rows."""
        return None

    def assigner(self, door: Door, shard: Shard, cost: CostModel | None, seed: int) -> Assigner | None:
        """The object that chooses codecs, or stale epochs, during training, if the method does that."""
        return None

    def window(self) -> Window:
        """The epochs whose times stand for all epochs."""
        return USUAL
