"""Fetches the features of sampled batches: ids go out, rows come back, with several batches under way at once.

Each batch goes through three stages. Each turn does each stage once, on different batches:

    answer    receive the ids that other ranks ask for, gather those rows, send them
    ask       send each owner the ids of the rows that the next batch needs, and the number of ids of the batch after it
    finish    gather the rows of an earlier batch that are held here, receive the rest, return the batch

The receiver of a message of ids knows its size from the message before it, and both sides know how many rows come back.
So a batch costs two exchanges. All ranks take the same turns in the same order, whichever rows they need.
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

# A message of ids begins with the number of ids in the next one.
HEADER = 2  # int32


@dataclass
class _Underway:
    number: int
    sampled: Sampled
    ids: Transfer[list[Tensor]] | None = None
    rows: Transfer[list[Tensor]] | None = None


class Pipeline:
    """This rank's side of the pipeline. It works `depth` batches ahead of the one returned; with 0, without overlap."""

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
        self._asked: list[int] = []  # number of ids in the next message from each rank
        self.rows_wanted = 0  # rows asked of other ranks so far

    def run(self, batches: Iterator[Sampled], number: int = 0) -> Iterator[tuple[Sampled, Tensor]]:
        """Each batch with its features. All ranks must have the same number of batches. `number` is the first one's."""
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
            # While batches are left, the ids of one batch and the rows of those before it stay under way.
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
        sampled = batch.sampled
        x = empty((len(sampled.nodes), self._rows.width), torch.float32, self._x.device)
        take(self._x, sampled.own_rows, sampled.own_at, x)
        take(self._cache.x, sampled.cached_rows, sampled.cached_at, x)
        places = sampled.wanted_at.split(list(sampled.wanted_from))
        parts = batch.rows.wait()
        with self._door.books.coding(f"{self._channel}.rows"):
            for part, at in zip(parts, places, strict=True):
                self._rows.unpack(part, at, x)
        return sampled, x
