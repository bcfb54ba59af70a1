"""What a run asks its method. Pure: a method knows epochs and codecs, no network."""

from __future__ import annotations  # what AdaQP brings along, which imports what asks here

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.codecs import Codec, Identity
from thinwire.training.method import Method as AnyMethod
from thinwire.training.window import USUAL, Window

if TYPE_CHECKING:
    import torch

    from thinwire.fullgraph.assign import Assigner
    from thinwire.fullgraph.trace import Trace
    from thinwire.links import Door
    from thinwire.links.cost import CostModel


@dataclass(frozen=True)
class Method(AnyMethod):
    """Abstract. The answers here are those of float32 messages that are waited for at once."""

    def codec(self) -> Codec:
        """Of all messages, as long as nothing else was chosen."""
        return Identity()

    def draw(self, num_rows: int, seed: int) -> Codec | None:
        """The codec of an epoch's message of so many rows, by a seed that both its ends know; None: the one in force.

        An epoch draws once for each ordered pair of ranks: for all layers, and for the gradients on the way back.
        """
        return None

    def message_bytes(self, num_rows: int, width: int) -> int:
        """Of a message, as long as no other codec was chosen; where epochs draw, in the mean."""
        return self.codec().nbytes((num_rows, width))

    @property
    def overlaps(self) -> bool:
        """Whether computation goes on while rows travel."""
        return True

    @property
    def keeps_rows(self) -> bool:
        """Whether an epoch may need rows that an earlier one received."""
        return self.may_be_stale

    def is_stale(self, epoch: int) -> bool:
        """Whether it takes the rows that were sent an epoch before, while its own are under way."""
        return False

    def sends_all(self, epoch: int) -> bool:
        """Whether rows that are not sent otherwise are sent for once."""
        return False

    def trace(self) -> Trace | None:
        """What looks at the rows of a wire, where codecs are chosen by them."""
        return None

    def assigner(self, door: Door, cost: CostModel | None, device: torch.device, seed: int) -> Assigner | None:
        """What chooses codecs while training, where that is done."""
        return None

    def window(self) -> Window:
        """Which epochs stand for all."""
        return USUAL
