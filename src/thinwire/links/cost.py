"""Seconds on the wire, from a profile: the same model for every planner. Pure; never touches torch.distributed.

A message from i to j takes max(floor, fixed + bytes / rate), fitted for that ordered pair: small messages take the
floor whatever their size, large ones the line, whose fixed part may be negative (a switch or a shaper lets a first
burst pass at full speed). A collective's time has the same shape over the time that its bytes need on the links, which
follows from how they go: in rounds, in a ring, in a chain. What that does not explain is measured and not guessed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.checked import strictly
from thinwire.links.routes import CHUNK_BYTES, reduce_heir, ring_heir

Array = np.ndarray[Any, np.dtype[np.float64]]

# How exactly a time is known: the scheduler adds to it, however small the message is, and rates vary.
NOISE_S = 0.0002
NOISE_SHARE = 0.02
KINDS = ("all_to_all", "all_gather", "all_reduce", "broadcast")


@dataclass(frozen=True)
class Hinge:
    """seconds(x) = max(floor, fixed + slope * x)."""

    floor_s: float
    fixed_s: float
    slope: float

    def __call__(self, x: float) -> float:
        return max(self.floor_s, self.fixed_s + self.slope * x)


STRAIGHT = Hinge(0.0, 0.0, 1.0)


def fit_hinge(x: Sequence[float], seconds: Sequence[float]) -> Hinge:
    """The hinge that explains the times best, each weighed by how well it can be known: NOISE_S plus NOISE_SHARE of it.

    Every split of the points into floor and line is tried; the line needs two points and may not fall.
    """
    if len(x) < 2 or len(x) != len(seconds):
        raise ValueError(f"fit_hinge: {len(x)} sizes and {len(seconds)} times; give at least two of each")
    order = np.argsort(x)
    sizes, times = np.asarray(x, dtype=np.float64)[order], np.asarray(seconds, dtype=np.float64)[order]
    weights = 1 / (NOISE_S + NOISE_SHARE * times)
    candidates = [_hinge(sizes, times, weights, split) for split in range(len(sizes) - 1)]

    def misfit(hinge: Hinge) -> float:
        explained = np.array([hinge(size) for size in sizes])
        return float((((explained - times) * weights) ** 2).sum())

    return min(candidates, key=misfit)


def _hinge(sizes: Array, times: Array, weights: Array, split: int) -> Hinge:
    floor = float(np.median(times[:split])) if split else 0.0
    lines = weights[split:]
    columns = np.stack((lines, sizes[split:] * lines), axis=1)
    fixed, slope = np.linalg.lstsq(columns, times[split:] * lines, rcond=None)[0]
    if slope < 0:
        fixed, slope = np.average(times[split:], weights=lines**2), 0.0
    return Hinge(floor, float(fixed), float(slope))


@dataclass(frozen=True)
class Link:
    """An ordered pair of ranks. `latency_s` is what the smallest message takes."""

    src: int
    dst: int
    latency_s: float
    fixed_s: float
    bytes_per_s: float

    def seconds(self, size_bytes: float) -> float:
        return max(self.latency_s, self.fixed_s + size_bytes / self.bytes_per_s)


def read_cost(path: str) -> "CostModel | None":
    """The cost model in a profile.json; None where no path is given."""
    if not path:
        return None
    if not Path(path).exists():
        raise ValueError(f"{path} does not exist, so it is no profile; make one with thinwire profile --out FILE")
    try:
        return CostModel.from_json(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no profile ({error}); make one with thinwire profile --out FILE") from None


@dataclass(frozen=True)
class CostModel:
    """Every ordered pair's link, and each collective's own hinge over its time on the links."""

    world_size: int
    links: Mapping[tuple[int, int], Link]
    collectives: Mapping[str, Hinge]

    def send(self, src: int, dst: int, size_bytes: float) -> float:
        return self.links[src, dst].seconds(size_bytes)

    def all_to_all(self, bytes_from_to: Sequence[Sequence[float]]) -> float:
        """bytes_from_to[i][j] from rank i to rank j."""
        return self.collectives["all_to_all"](self.rounds_s(bytes_from_to))

    def all_gather(self, sizes: Sequence[float]) -> float:
        if len(set(sizes)) > 1:
            return self.all_to_all([[size] * self.world_size for size in sizes])
        return self.collectives["all_gather"](self.ring_s((self.world_size - 1) * sizes[0], ring_heir))

    def all_reduce(self, size_bytes: float) -> float:
        n = self.world_size
        return self.collectives["all_reduce"](self.ring_s(2 * (n - 1) / n * size_bytes, reduce_heir))

    def broadcast(self, size_bytes: float, source: int) -> float:
        return self.collectives["broadcast"](self.chain_s(size_bytes, source))

    def rounds_s(self, bytes_from_to: Sequence[Sequence[float]]) -> float:
        """The door's all-to-all: in round r to the r-th rank after me, from the r-th before me."""
        n = self.world_size
        free_s = [0.0] * n
        for distance in range(1, n):
            ends = list(free_s)
            for src in range(n):
                dst = (src + distance) % n
                size = bytes_from_to[src][dst]
                if size:
                    # A stream flows once both its ends have come to this round.
                    end = max(free_s[src], free_s[dst]) + size / self.links[src, dst].bytes_per_s
                    ends[src], ends[dst] = max(ends[src], end), max(ends[dst], end)
            free_s = ends
        return max(free_s)

    def ring_s(self, bytes_per_edge: float, heir: Callable[[int, int], int]) -> float:
        """A ring is as fast as its slowest edge."""
        n = self.world_size
        if n == 1:
            return 0.0
        slowest = min(self.links[rank, heir(rank, n)].bytes_per_s for rank in range(n))
        return bytes_per_edge / slowest

    def chain_s(self, size_bytes: float, source: int) -> float:
        """Rank to rank, chunk by chunk: the first chunk goes all the way, the rest follows at the slowest edge's pace.

        (A small broadcast is a tree; it costs the floor.)
        """
        n = self.world_size
        if n == 1:
            return 0.0
        edges = [self.links[(source + hop) % n, (source + hop + 1) % n].bytes_per_s for hop in range(n - 1)]
        first = min(size_bytes, CHUNK_BYTES)
        return sum(first / rate for rate in edges) + (size_bytes - first) / min(edges)

    def to_json(self) -> dict[str, Any]:
        return {
            "world_size": self.world_size,
            "links": [asdict(link) for link in self.links.values()],
            "collectives": {kind: asdict(hinge) for kind, hinge in self.collectives.items()},
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "CostModel":
        written = strictly(content, _Written)
        return CostModel(
            written.world_size, {(link.src, link.dst): link for link in written.links}, written.collectives
        )


@dataclass(frozen=True)
class _Written:
    """A cost model as a file has it."""

    world_size: int
    links: tuple[Link, ...]
    collectives: dict[str, Hinge]
