"""What chooses during training: the codecs of messages, and which epochs are stale. A method may bring one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.methods import Method
from thinwire.fullgraph.wire import Codecs
from thinwire.links import Door
from thinwire.links.cost import CostModel


class Assigner(ABC):
    """Abstract. Collective: all ranks call each method at the same point, and all choose alike."""

    cost: CostModel | None = None  # of the links, where the choice needs one

    def __init__(self, door: Door, method: Method) -> None:
        self._door = door
        self._rule = method
        self.records: list[dict[str, Any]] = []  # one for each choice, for plan.N.json

    @abstractmethod
    def after_epoch(self, halos: Sequence[Halo], epoch: int, seconds: float, loss: float | None) -> None:
        """The epoch's gradients are summed. `loss` is this rank's share, if the loop noted it."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Facts for a checkpoint."""

    @abstractmethod
    def restore(self, facts: Mapping[str, Any], *, same: bool) -> None:
        """Go on from a checkpoint's facts; `same`: this run has as many ranks as the one that saved them."""

    def codecs(self) -> Codecs | None:
        """The codecs of the next epoch's forward messages, gradients going back by the same. None: each wire's own."""
        return None

    def is_stale(self, epoch: int) -> bool:
        """Whether the epoch, which begins now, uses the rows of the one before."""
        return self._rule.is_stale(epoch)

    def event(self) -> dict[str, Any]:
        """What was in force in the last epoch, for its event."""
        return {}

    def choosing_s(self) -> float:
        """Mean seconds an epoch that went into choosing."""
        return 0.0
