"""Types for the content of a run's folder. Most fields may be missing, since older runs wrote less."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

from thinwire.checked import Count, Number, Positive


class Traffic(Struct, frozen=True):
    """A channel's bytes in an epoch, over all ranks, and the bytes that float32 would have needed."""

    bytes: Number
    float32_bytes: Number | None = None


class RankTimes(Struct, frozen=True):
    """Where one rank's epoch went. Hidden transfers ran at the same time as the rest and add nothing to `seconds`."""

    seconds: Number = 0.0
    compute_s: Number = 0.0
    codec_s: Number = 0.0
    exposed_s: Number = 0.0
    hidden_s: Number = 0.0
    bytes_to: dict[Count, Number] = {}


class Span(Struct, frozen=True, array_like=True):
    """Something that a rank did, in seconds from the epoch's start. A span without an end is left out."""

    kind: str  # transfer, wait or codec
    name: str
    start_s: Number
    end_s: Number
    bytes: Number = 0.0

    def __post_init__(self) -> None:
        if self.end_s < self.start_s:
            force_setattr(self, "end_s", self.start_s)


class Epoch(Struct, frozen=True):
    """A line of events.jsonl."""

    number: Count = field(name="epoch")
    loss: Number | None = None
    seconds: Number | None = None
    exposed_s: Number | None = None
    bytes: Number | None = None
    float32_bytes: Number | None = None
    halo_bytes: Number | None = None
    remote_rows: Number | None = None
    val_score: Number | None = None
    test_score: Number | None = None
    stale: bool | None = None
    assign_s: Number | None = None
    predicted_s: Number | None = None
    predicted_bytes: Number | None = None
    predicted_halo_bytes: Number | None = None
    predicted_rows: Number | None = None
    channels: dict[str, Traffic] = {}
    ranks: tuple[RankTimes, ...] = ()
    spans: tuple[tuple[Span, ...], ...] = ()  # by rank

    @property
    def predicted(self) -> dict[str, tuple[float, float]]:
        """Predicted and measured values of the same figure: {"halo_bytes": (predicted, measured)}."""
        pairs = {
            "halo_bytes": (self.predicted_halo_bytes, self.halo_bytes),
            "bytes": (self.predicted_bytes, self.bytes),
            "remote_rows": (self.predicted_rows, self.remote_rows),
        }
        return {
            name: (predicted, measured)
            for name, (predicted, measured) in pairs.items()
            if predicted is not None and measured is not None
        }


class Message(Struct, frozen=True):
    """A channel's number of rows by bits, as assigned."""

    channel: str = ""
    rows_at_bits: dict[Count, Number] = {}


class Assignment(Struct, frozen=True):
    """The content of a plan.N.json."""

    from_epoch: Count = 0
    messages: tuple[Message, ...] = ()


class Link(Struct, frozen=True):
    """The measured link of an ordered pair of ranks."""

    src: Count
    dst: Count
    bytes_per_s: Positive
    latency_s: Number | None = None


class PredictedRow(Struct, frozen=True):
    """What was predicted for a method before the run."""

    epoch_s: Number
    method: str = ""
    bytes_per_epoch: Number | None = None
    memory_bytes: Number | None = None


class PredictedRate(Struct, frozen=True):
    """Seconds an epoch by method on links of this rate. All are positive, since they are drawn on log axes."""

    bits_per_s: Positive
    epoch_s: dict[str, Positive] = {}


class Prediction(Struct, frozen=True):
    rows: tuple[PredictedRow, ...] = ()
    recommended: str = ""
    rates: tuple[PredictedRate, ...] = ()


class Launch(Struct, frozen=True):
    """How the ranks were started."""

    kind: str = ""
    hosts: Any = None
    rate: Any = None


class Facts(Struct, frozen=True):
    """plan.json: what was run, and on what. Fields that are only shown may have any type."""

    data: str = ""
    method: str = ""  # in words, with the options that differ from defaults
    model: Any = None
    layers: Any = None
    hidden: Any = None
    dropout: Any = None
    norm: str = ""
    optimizer: str = ""
    lr: Any = None
    seed: Count | None = None
    world_size: Count | None = None
    epochs: Count | None = None  # asked for
    thinwire: str = ""
    plan: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    launch: Launch = Launch()
    links: tuple[Link, ...] = ()
    prediction: Prediction = Prediction()


@dataclass(frozen=True)
class State:
    """How a run ended, or that it has not ended."""

    word: str  # complete, failed or unfinished
    sentence: str  # the same in a sentence
    error: str = ""


@dataclass(frozen=True)
class Run:
    """A folder that `thinwire train --out` wrote."""

    label: str  # short, and unique in the report
    folder: Path
    facts: Facts
    state: State
    epochs: tuple[Epoch, ...]
    assignments: tuple[Assignment, ...]

    @property
    def asked(self) -> int | None:
        """The number of epochs asked for."""
        return self.facts.epochs

    @property
    def prediction(self) -> Prediction | None:
        """The prediction made before the run; None if there is none."""
        return self.facts.prediction if self.facts.prediction.rows or self.facts.prediction.rates else None

    @property
    def method(self) -> str:
        return str(self.facts.plan.get("method", ""))

    @property
    def predicted_as(self) -> str:
        """The method as predictions name it: with the options that differ from defaults."""
        return self.facts.method

    @property
    def done(self) -> int:
        """The number of epochs done."""
        return self.epochs[-1].number + 1 if self.epochs else 0

    @property
    def steady(self) -> tuple[Epoch, ...]:
        """The epochs that represent the run: without the first, which may fetch rows that later ones reuse, and the
        last, which has nothing to fetch ahead.
        """
        return self.epochs[1:-1] or self.epochs[1:] or self.epochs

    def median(self, name: str) -> float | None:
        """The median of a figure over the steady epochs that have it."""
        values = [value for epoch in self.steady if (value := getattr(epoch, name)) is not None]
        return statistics.median(values) if values else None

    def last(self, name: str) -> float | None:
        """The figure of the last epoch that has it."""
        return next((value for epoch in reversed(self.epochs) if (value := getattr(epoch, name)) is not None), None)
