"""From sampled batches to batches with features: ids out, rows back, several batches on their way at a time.

Every batch goes through three stages, and each turn takes each stage one step further, each on another batch:

    answer    receive the others' wishes for a batch, gather those rows, send them
    ask       tell every owner which rows the next batch wants of it, and how many the one after that will want
    finish    gather what is held here of an earlier batch, receive the rest, hand it out

How many rows a message of ids will hold, its receiver knows from the one before it; how many rows come back, both know.
So a batch costs two exchanges and no more. All ranks take the same turns in the same order, whatever they want of whom.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs import seed_from
from thinwire.codecs.kernels import empty
from thinwire.links import Door, Transfer
from thinwire.minibatch.batch import Sampled
from thinwire.minibatch.cache import Cache
from thinwire.minibatch.rows import RowFormat, take

# A message of ids begins with how many the next one has.
HEADER = 2  # int32


@dataclass
class _Underway:
    number: int
    sampled: Sampled
    ids: Transfer[list[Tensor]] | None = None
    rows: Transfer[list[Tensor]] | None = None


class Pipeline:
    """This rank's part of it. `depth` batches are ahead of the one that is handed out; 0 does one after the other."""

    def __init__(
        self, door: Door, x: Tensor, cache: Cache, rows: RowFormat, *, depth: int, channel: str = "batch", seed: int = 0
    ) -> None:
        self._door = door
        self._x = x
        self._cache = cache
        self._rows = rows
        self._depth = depth
        self._channel = channel
        self._seed = seed
        self._asked: list[int] = []  # how many ids the next message of each rank has
        self.rows_wanted = 0  # of other ranks, so far

    def run(self, batches: Iterator[Sampled], number: int = 0) -> Iterator[tuple[Sampled, Tensor]]:
        """Each with its features. Ranks must have equally many. `number` is the first one's, of all there will be."""
        asked: deque[_Underway] = deque()
        answered: deque[_Underway] = deque()
        following = next(batches, None)
        if following is not None:
            wanted = self._door.gather(torch.tensor(following.wanted_from), channel=f"{self._channel}.sizes")
            self._asked = wanted[:, self._door.rank].tolist()
        while following is not None or asked or answered:
            if asked:
                answered.append(self._answer(asked.popleft()))
            if following is not None:
                this, following = following, next(batches, None)
                asked.append(self._ask(_Underway(number, this), following))
                number += 1
            if self._depth == 0:
                answered.append(self._answer(asked.popleft()))
            # The ids of one batch and the rows of those before it stay under way, as long as there are more.
            if answered and (len(answered) >= self._depth or not asked):
                yield self._finish(answered.popleft())

    def _ask(self, batch: _Underway, following: Sampled | None) -> _Underway:
        device = self._x.device
        self._door.step = batch.number
        if device.type != "cpu":
            batch.sampled = batch.sampled.to(device)
        sampled = batch.sampled
        self.rows_wanted += len(sampled.wanted_rows)
        counts = following.wanted_from if following is not None else (0,) * self._door.world_size
        headers = torch.tensor(counts, dtype=torch.int64).view(torch.int32).view(-1, HEADER).to(device)
        wanted = sampled.wanted_rows.split(list(sampled.wanted_from))
        sent = [torch.cat(parts) for parts in zip(headers, wanted, strict=True)]
        sizes = [4 * (HEADER + count) for count in self._asked]
        batch.ids = self._door.all_to_all(sent, sizes, channel=f"{self._channel}.ids")
        return batch

    def _answer(self, batch: _Underway) -> _Underway:
        assert batch.ids is not None
        self._door.step = batch.number
        received = [part.clone().view(torch.int32) for part in batch.ids.wait()]
        batch.ids = None
        self._asked = [int(part[:HEADER].cpu().view(torch.int64)) for part in received]
        seeds = [seed_from(self._seed, batch.number, self._door.rank, peer) for peer in range(len(received))]
        asked = sum(len(part) - HEADER for part in received)
        with self._door.books.coding(f"{self._channel}.rows", asked * self._rows.width):
            sent = [self._rows.pack(self._x, part[HEADER:], seed) for part, seed in zip(received, seeds, strict=True)]
        sizes = [self._rows.nbytes(count) for count in batch.sampled.wanted_from]
        batch.rows = self._door.all_to_all(sent, sizes, channel=f"{self._channel}.rows")
        return batch

    def _finish(self, batch: _Underway) -> tuple[Sampled, Tensor]:
        assert batch.rows is not None
        self._door.step = batch.number
        of = batch.sampled
        x = empty((len(of.nodes), self._rows.width), torch.float32, self._x.device)
        take(self._x, of.own_rows, of.own_at, x)
        take(self._cache.x, of.cached_rows, of.cached_at, x)
        places = of.wanted_at.split(list(of.wanted_from))
        parts = batch.rows.wait()
        with self._door.books.coding(f"{self._channel}.rows"):
            for part, at in zip(parts, places, strict=True):
                self._rows.unpack(part, at, x)
        return of, x
