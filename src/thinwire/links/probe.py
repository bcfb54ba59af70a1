"""Measure the wires through the door: every ordered pair, every collective, then fit the cost model; check it on draws.

Every rank calls these functions alike and gets the same answer: times are gathered, and fitting is a pure function.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from thinwire.links.cost import KINDS, STRAIGHT, CostModel, Link, fit_hinge
from thinwire.links.exchange import Door

CHANNEL = "probe"
SIZES = (1_000, 10_000, 60_000, 250_000, 1_000_000, 4_000_000)
REPEATS = 31
# A measurement is repeated until this much time is spent on it, at most REPEATS times.
PATIENCE_S = 0.15

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class CheckRow:
    """A payload the model was not fitted to: what it says, and what it took."""

    collective: str
    bytes: int  # that the busiest rank sends
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return abs(self.predicted_s - self.measured_s) / self.measured_s


def probe(door: Door, *, on_progress: Progress = lambda share, what: None) -> CostModel:
    """The fitted model of this group's wires."""
    n = door.world_size
    pairs = [(src, dst) for src in range(n) for dst in range(n) if src != dst]
    links = {}
    for done, pair in enumerate(pairs):
        on_progress(0.6 * done / len(pairs), f"link {pair[0]} -> {pair[1]}")
        links[pair] = _fit_link(door, *pair)
    bare = CostModel(n, links, dict.fromkeys(KINDS, STRAIGHT))
    hinges = {}
    for done, kind in enumerate(KINDS):
        on_progress(0.6 + 0.4 * done / len(KINDS), kind)
        payloads = [_even(kind, size, n) for size in SIZES[:-1]]
        times = [measure(door, payload) for payload in payloads]
        hinges[kind] = fit_hinge([payload.predict(bare) for payload in payloads], times) if n > 1 else STRAIGHT
    return CostModel(n, links, hinges)


def check(
    door: Door, model: CostModel, *, draws: int, seed: int, on_progress: Progress = lambda s, w: None
) -> list[CheckRow]:
    """Random collectives with random payloads, predicted and measured."""
    randomness = random.Random(seed)
    rows = []
    for done in range(draws):
        payload = _random_payload(randomness, door.world_size)
        on_progress(done / draws, payload.kind)
        rows.append(CheckRow(payload.kind, payload.bytes_of_busiest(), payload.predict(model), measure(door, payload)))
    return rows


@dataclass(frozen=True)
class Payload:
    """What one collective moves: sizes[i][j] bytes from rank i to rank j; for the even kinds just one size."""

    kind: str
    sizes: tuple[tuple[int, ...], ...]
    source: int = 0
    target: int = 1

    def predict(self, model: CostModel) -> float:
        size = self.sizes[self.source][self.target % model.world_size]
        if self.kind == "send":
            return model.send(self.source, self.target, size)
        if self.kind == "all_to_all":
            return model.all_to_all(self.sizes)
        if self.kind == "all_gather":
            return model.all_gather([row[0] for row in self.sizes])
        if self.kind == "all_reduce":
            return model.all_reduce(size)
        return model.broadcast(size, self.source)

    def post(self, door: Door) -> None:
        """Do it, to the end. (Messages are timed apart: `_message_seconds`.)"""
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

    def bytes_of_busiest(self) -> int:
        if self.kind in ("all_to_all", "all_gather"):
            return max(sum(size for j, size in enumerate(row) if j != i) for i, row in enumerate(self.sizes))
        return self.sizes[self.source][self.target % len(self.sizes)]


def measure(door: Door, payload: Payload) -> float:
    """Median seconds until the last rank is done; for a message, until it has arrived."""
    if payload.kind == "send":
        return _message_seconds(door, payload.source, payload.target, [payload.bytes_of_busiest()])[0]
    seconds: list[float] = []
    while not seconds or (len(seconds) < REPEATS and sum(seconds) < PATIENCE_S):
        _gather(door, 0.0)  # all start together
        start = time.perf_counter()
        payload.post(door)
        took = _gather(door, time.perf_counter() - start)
        seconds.append(max(took))
    return statistics.median(seconds)


def _fit_link(door: Door, src: int, dst: int) -> Link:
    hinge = fit_hinge(SIZES, _message_seconds(door, src, dst, SIZES))
    return Link(src, dst, max(hinge.floor_s, hinge.fixed_s, 0.0), hinge.fixed_s, 1 / max(hinge.slope, 1e-15))


def _message_seconds(door: Door, src: int, dst: int, sizes: Sequence[int]) -> list[float]:
    """Medians from src to dst, known to all. Taken at the source, less the byte in answer: half a round trip."""
    times = [0.0] * (1 + len(sizes))
    if door.rank == src:
        times = [_time_messages(door, dst, size) for size in (1, *sizes)]
    elif door.rank == dst:
        for size in (1, *sizes):
            _answer_messages(door, src, size)
    round_trip_s, *there_and_back = _from(door, src, times)
    return [max(time_s - round_trip_s / 2, 1e-6) for time_s in there_and_back]


def _time_messages(door: Door, dst: int, size: int) -> float:
    seconds: list[float] = []
    last = False
    while not last:
        # A message's first byte says whether it is the last: the receiver can't know how patient we are.
        last = len(seconds) + 1 >= REPEATS or sum(seconds) > PATIENCE_S
        message = torch.full((size,), int(last), dtype=torch.uint8)
        start = time.perf_counter()
        door.send(message, dst, channel=CHANNEL).wait()
        door.receive(1, dst, channel=CHANNEL).wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _answer_messages(door: Door, src: int, size: int) -> None:
    last = False
    while not last:
        last = bool(door.receive(size, src, channel=CHANNEL).wait()[0])
        door.send(_zeros(1), src, channel=CHANNEL).wait()


def _even(kind: str, size: int, n: int) -> Payload:
    return Payload(kind, ((size - size % 4,) * n,) * n)


def _random_payload(randomness: random.Random, n: int) -> Payload:
    kinds = ["send", "all_to_all", "all_gather", "all_reduce", "broadcast"] if n > 1 else ["all_reduce"]
    kind = randomness.choice(kinds)
    size = int(10 ** randomness.uniform(4, 6.6)) // 4 * 4
    source = randomness.randrange(n)
    target = (source + randomness.randrange(1, n)) % n if n > 1 else 0
    if kind == "all_to_all":
        sizes = tuple(tuple(int(size * randomness.uniform(0.2, 1)) for _ in range(n)) for _ in range(n))
    elif kind == "all_gather" and randomness.random() < 0.5:
        sizes = tuple((int(size * randomness.uniform(0.2, 1)),) * n for _ in range(n))
    else:
        sizes = ((size,) * n,) * n
    return Payload(kind, sizes, source, target)


def _gather(door: Door, value: float) -> Sequence[float]:
    mine = torch.tensor([value], dtype=torch.float64)
    everybody = door.all_gather(mine, [8] * door.world_size, channel=CHANNEL).wait()
    return [float(one.clone().view(torch.float64)) for one in everybody]


def _from(door: Door, source: int, values: Sequence[float]) -> list[float]:
    told = torch.tensor(values, dtype=torch.float64)
    return [float(value) for value in door.broadcast(told, source, channel=CHANNEL).wait()]


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
