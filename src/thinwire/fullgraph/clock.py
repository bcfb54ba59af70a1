"""Counts epochs. All halos of a model ask here what to send, whether messages are stale, and for seeds."""

from torch import Tensor

from thinwire.codecs import Codec, seed_from
from thinwire.fullgraph.methods import Method
from thinwire.fullgraph.wire import Codecs
from thinwire.graphs import Shard

# Makes these seeds differ from those of messages and of dropout.
DRAW = 3


class Clock:
    """Advanced by each forward pass in training mode."""

    def __init__(self, method: Method, seed: int, shard: Shard, rank: int) -> None:
        self.method = method
        self.epoch = -1  # no epoch has begun
        self.lowest: object = None  # the first halo that sends in this pass; backward it sends last
        self.drawn: Codecs | None = None  # the codecs of this epoch's forward messages, if the method draws them
        self.halo_nodes: Tensor | None = None  # the halo's nodes by their numbers in the whole graph, once asked for
        self._run_seed, self._shard, self._rank = seed, shard, rank

    def begin_epoch(self) -> None:
        self.epoch += 1
        out = [self._draw(count, self._rank, peer) for peer, count in enumerate(self._shard.send_to)]
        into = [self._draw(count, peer, self._rank) for peer, count in enumerate(self._shard.halo_from)]
        drawn = Codecs([codec for codec in out if codec], [codec for codec in into if codec])
        self.drawn = drawn if drawn.out else None

    def _draw(self, num_rows: int, owner: int, reader: int) -> Codec | None:
        return self.method.draw(num_rows, seed_from(*self.seed, owner, DRAW, reader))

    @property
    def stale(self) -> bool:
        return self.epoch >= 0 and self.method.is_stale(self.epoch)

    @property
    def seed(self) -> tuple[int, int]:
        return (self._run_seed, self.epoch)
