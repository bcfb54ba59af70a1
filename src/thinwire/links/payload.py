"""What one message or collective moves: predicted by a model, or sent through a door and timed."""

import random
import time
from dataclasses import dataclass

import torch

from thinwire.links.cost import CostModel
from thinwire.links.exchange import Door

CHANNEL = "probe"


@dataclass(frozen=True)
class Payload:
    """sizes[i][j] bytes from rank i to rank j; the even kinds have one size, messages go from source to target."""

    kind: str
    sizes: tuple[tuple[int, ...], ...]
    source: int = 0
    target: int = 1

    @staticmethod
    def even(kind: str, size: int, n: int) -> "Payload":
        return Payload(kind, ((size - size % 4,) * n,) * n)

    @staticmethod
    def uneven(kind: str, size: int, n: int, randomness: random.Random) -> "Payload":
        """Random sizes from a fifth of `size` to all of it, one a message; for all_gather one a rank."""
        shares = [[randomness.uniform(0.2, 1) for _ in range(n)] for _ in range(n)]
        if kind == "all_gather":
            shares = [row[:1] * n for row in shares]
        return Payload(kind, tuple(tuple(int(size * share) for share in row) for row in shares))

    @staticmethod
    def message(size: int, source: int, target: int, n: int) -> "Payload":
        return Payload("send", ((size,) * n,) * n, source, target)

    @staticmethod
    def draw(randomness: random.Random, n: int) -> "Payload":
        kinds = ["send", "all_to_all", "all_gather", "all_reduce", "broadcast"] if n > 1 else ["all_reduce"]
        kind = randomness.choice(kinds)
        size = int(10 ** randomness.uniform(4, 6.6)) // 4 * 4
        source = randomness.randrange(n)
        target = (source + randomness.randrange(1, n)) % n if n > 1 else 0
        if kind == "all_to_all" or (kind == "all_gather" and randomness.random() < 0.5):
            return Payload.uneven(kind, size, n, randomness)
        return Payload(kind, ((size,) * n,) * n, source, target)

    @property
    def size(self) -> int:
        return self.sizes[self.source][self.target % len(self.sizes)]

    def bytes_of_busiest(self) -> int:
        """What the rank with the most to send sends."""
        if self.kind in ("all_to_all", "all_gather"):
            return max(sum(size for j, size in enumerate(row) if j != i) for i, row in enumerate(self.sizes))
        return self.size

    def predict(self, model: CostModel) -> float:
        if self.kind == "send":
            return model.send(self.source, self.target, self.size)
        if self.kind == "all_to_all":
            return model.all_to_all(self.sizes)
        if self.kind == "all_gather":
            return model.all_gather([row[0] for row in self.sizes])
        if self.kind == "all_reduce":
            return model.all_reduce(self.size)
        return model.broadcast(self.size, self.source)

    def seconds(self, door: Door, repeats: int) -> list[float]:
        """How long it takes until the last rank is done, `repeats` times, known to all ranks."""
        if self.kind == "send":
            return self._message_seconds(door, repeats)
        if self.kind == "broadcast":  # one at a time, as the source would run ahead of the rest
            return [self._mean_s(door, 1) for _ in range(repeats)]
        return [self._mean_s(door, repeats)] * repeats

    def _mean_s(self, door: Door, repeats: int) -> float:
        """The mean of several back to back: that ranks do not start together then counts only once."""
        door.barrier(channel=CHANNEL)
        start = time.perf_counter()
        for _ in range(repeats):
            self._send(door)
        return float(door.gather(time.perf_counter() - start, channel=CHANNEL).max()) / repeats

    def _message_seconds(self, door: Door, repeats: int) -> list[float]:
        """Timed at the source, without the time of the one-byte answer, which is half a round trip of single bytes."""
        # The first is a single byte that only wakes both ends.
        sizes = [1, *((self.size, 1) * repeats)]
        taken = [0.0] * len(sizes)
        if door.rank == self.source:
            for number, size in enumerate(sizes):
                message = _zeros(size)
                start = time.perf_counter()
                door.send(message, self.target, channel=CHANNEL).wait()
                door.receive(1, self.target, channel=CHANNEL).wait()
                taken[number] = time.perf_counter() - start
        elif door.rank == self.target:
            for size in sizes:
                door.receive(size, self.source, channel=CHANNEL).wait()
                door.send(_zeros(1), self.source, channel=CHANNEL).wait()
        taken_s = torch.tensor(taken, dtype=torch.float64)
        _, *known = door.broadcast(taken_s, self.source, channel=CHANNEL).wait().tolist()
        return [max(there - byte / 2, byte / 2) for there, byte in zip(known[::2], known[1::2], strict=True)]

    def _send(self, door: Door) -> None:
        me = door.rank
        mine = self.sizes[me]
        if self.kind == "all_to_all":
            door.all_to_all([_zeros(size) for size in mine], [row[me] for row in self.sizes], channel=CHANNEL).wait()
        elif self.kind == "all_gather":
            door.all_gather(_zeros(mine[0]), [row[0] for row in self.sizes], channel=CHANNEL).wait()
        elif self.kind == "all_reduce":
            door.all_reduce(_zeros(mine[0]).view(torch.float32), channel=CHANNEL).wait()
        else:
            door.broadcast(_zeros(mine[0]), self.source, channel=CHANNEL).wait()


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
