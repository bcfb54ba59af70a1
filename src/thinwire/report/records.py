"""What a run's folder holds, as values. All but an epoch's number may be missing: older runs wrote less."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Traffic:
    """A channel's bytes in an epoch, over all ranks, and what float32 would have come to."""

    bytes: float
    float32_bytes: float | None


@dataclass(frozen=True)
class RankTimes:
    """Where one rank's epoch went. Hidden transfers ran behind the rest: they are no part of the seconds."""

    seconds: float
    compute_s: float
    codec_s: float
    exposed_s: float
    hidden_s: float
    bytes_to: Mapping[int, float]


@dataclass(frozen=True)
class Span:
    """Something that a rank did, in seconds from the epoch's start."""

    kind: str  # transfer, wait or codec
    name: str
    start_s: float
    end_s: float
    bytes: float


@dataclass(frozen=True)
class Epoch:
    """A line of events.jsonl."""

    number: int
    loss: float | None
    seconds: float | None
    exposed_s: float | None
    bytes: float | None
    float32_bytes: float | None
    val_score: float | None
    test_score: float | None
    stale: bool | None
    assign_s: float | None
    predicted_s: float | None
    # What was predicted and what came, of the same thing: {"halo_bytes": (predicted, measured)}.
    predicted: Mapping[str, tuple[float, float]]
    channels: Mapping[str, Traffic]
    ranks: tuple[RankTimes, ...]
    spans: tuple[tuple[Span, ...], ...]  # by rank


@dataclass(frozen=True)
class Message:
    """A channel's rows by bits, as assigned."""

    channel: str
    rows_at_bits: Mapping[int, float]


@dataclass(frozen=True)
class Assignment:
    """A plan.N.json."""

    from_epoch: int
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Link:
    """An ordered pair's wire, as measured."""

    src: int
    dst: int
    bytes_per_s: float
    latency_s: float | None


@dataclass(frozen=True)
class PredictedRow:
    """What a method would cost, said before the run."""

    method: str
    epoch_s: float
    bytes_per_epoch: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class PredictedRate:
    """Seconds an epoch by method on links of this rate."""

    bits_per_s: float
    epoch_s: Mapping[str, float]


@dataclass(frozen=True)
class Prediction:
    rows: tuple[PredictedRow, ...]
    recommended: str
    rates: tuple[PredictedRate, ...]


@dataclass(frozen=True)
class State:
    """How a run ended, or that it has not."""

    word: str  # complete, failed or unfinished
    sentence: str  # the same in a sentence
    error: str = ""


@dataclass(frozen=True)
class Run:
    """A folder that `thinwire train --out` wrote."""

    label: str  # short, and like no other run's of the report
    folder: Path
    facts: Mapping[str, Any]  # plan.json as it is
    state: State
    epochs: tuple[Epoch, ...]
    asked: int | None  # epochs
    assignments: tuple[Assignment, ...]
    links: tuple[Link, ...]
    prediction: Prediction | None

    @property
    def method(self) -> str:
        plan = self.facts.get("plan")
        return str(plan.get("method", "")) if isinstance(plan, dict) else ""

    @property
    def predicted_as(self) -> str:
        """The method as predictions call it: with the options that are not as usual."""
        return str(self.facts.get("method", ""))

    @property
    def done(self) -> int:
        """Epochs."""
        return self.epochs[-1].number + 1 if self.epochs else 0

    @property
    def steady(self) -> tuple[Epoch, ...]:
        """Those that stand for all: the first may fetch what later ones have, the last has nothing to fetch ahead."""
        return self.epochs[1:-1] or self.epochs[1:] or self.epochs

    def median(self, name: str) -> float | None:
        """Of a figure over the steady epochs that have it."""
        values = [value for epoch in self.steady if (value := getattr(epoch, name)) is not None]
        return statistics.median(values) if values else None

    def last(self, name: str) -> float | None:
        """The newest figure there is."""
        return next((value for epoch in reversed(self.epochs) if (value := getattr(epoch, name)) is not None), None)
