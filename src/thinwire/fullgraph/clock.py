"""Which epoch it is: all places of a model look here for what to send, whether to wait, and what to seed with."""

from thinwire.codecs import Codec, seed_from
from thinwire.fullgraph.methods import Method
from thinwire.fullgraph.wire import Codecs
from thinwire.graphs import Shard

# Apart from the seeds of messages and of dropout.
DRAW = 3


class Clock:
    """Moved on by every forward pass in training."""

    def __init__(self, method: Method, seed: int, shard: Shard, rank: int) -> None:
        self.method = method
        self.epoch = -1  # none yet
        self.lowest: object = None  # of this pass: the place nearest to the features that sends; the last one backward
        self.drawn: Codecs | None = None  # this epoch's messages forward, where the method draws
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
