"""Counts epochs. All halos of a model ask here what to send, whether messages are stale, and for seeds."""

from __future__ import annotations  # `Assigner` is only a name here: its module imports this one

from typing import TYPE_CHECKING

from torch import Tensor

from thinwire.codecs import Codec, seed_from
from thinwire.fullgraph.methods import Method
from thinwire.fullgraph.wire import Codecs
from thinwire.graphs import Shard

if TYPE_CHECKING:
    from thinwire.fullgraph.assigner import Assigner

# Makes these seeds differ from those of messages and of dropout.
DRAW = 3


class Clock:
    """Advanced by each forward pass in training mode."""

    def __init__(self, method: Method, seed: int, shard: Shard, rank: int, assigner: Assigner | None = None) -> None:
        self.method = method
        self.assigner = assigner
        self.epoch = -1  # no epoch has begun
        self.stale = False  # whether this epoch uses the rows of the one before
        self.lowest: object = None  # the first halo that sends in this pass; backward it sends last
        self.drawn: Codecs | None = None  # the codecs of this epoch's forward messages, if all layers' are the same
        self.halo_nodes: Tensor | None = None  # the halo's nodes by their numbers in the whole graph, once asked for
        self._run_seed, self._shard, self._rank = seed, shard, rank

    def begin_epoch(self) -> None:
        self.epoch += 1
        if self.assigner is None:
            self.stale, self.drawn = self.method.is_stale(self.epoch), self._drawn()
        else:
            self.stale, self.drawn = self.assigner.is_stale(self.epoch), self.assigner.codecs()

    def _drawn(self) -> Codecs | None:
        out = [self._draw(count, self._rank, peer) for peer, count in enumerate(self._shard.send_to)]
        into = [self._draw(count, peer, self._rank) for peer, count in enumerate(self._shard.halo_from)]
        drawn = Codecs([codec for codec in out if codec], [codec for codec in into if codec])
        return drawn if drawn.out else None

    def _draw(self, num_rows: int, owner: int, reader: int) -> Codec | None:
        return self.method.draw(num_rows, seed_from(*self.seed, owner, DRAW, reader))

    @property
    def seed(self) -> tuple[int, int]:
        return (self._run_seed, self.epoch)
