"""From recordings to a row for each method, the recommended one and why, and how times change with the rate. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from thinwire.bench.methods import is_sampled, job_of
from thinwire.fullgraph import Exact
from thinwire.gradients import sharing
from thinwire.gradients.algorithms import NONE
from thinwire.links.cost import CostModel
from thinwire.links.replay import replay
from thinwire.prediction.recording import Recording
from thinwire.prediction.wires import RATES, even

MODEL = "replay"
EXACT = Exact.name
# Times within this factor differ by less than predictions err: then the method that changes training least is taken.
CLOSE = 1.02
# If exact waits for less than IDLE of its epoch, another method must be faster by WORTH, more than predictions err.
IDLE, WORTH = 0.05, 1.10


@dataclass(frozen=True)
class Row:
    """What is predicted for a method on these wires."""

    method: str
    epoch_s: float
    bytes_per_epoch: int
    memory_bytes: int
    speedup: float  # over exact's epoch
    waits: float  # share of the epoch that would be saved if transfers took no time
    model: str = MODEL  # what the seconds come from
    gradients: str = NONE  # the codec of the weights' gradients


@dataclass(frozen=True)
class Prediction:
    """`rates`: for each rate, seconds of an epoch by method if all links had that rate."""

    rows: list[Row]
    recommended: str
    why: str
    rates: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        rates = [{"rate": rate, "bits_per_s": RATES[rate], "epoch_s": seconds} for rate, seconds in self.rates.items()]
        return {
            "rows": [asdict(row) for row in self.rows],
            "recommended": self.recommended,
            "why": self.why,
            "rates": rates,
        }


def predict(recordings: Sequence[Recording], cost: CostModel, *, cores: int | None, chart: bool = True) -> Prediction:
    """Predict each recorded method on the wires of `cost`. All ranks share `cores`; None: each has cores of its own."""
    chosen = {recording.method: settled(recording, cost, cores) for recording in recordings}
    seconds = {method: epoch_s(recording, cost, cores) for method, recording in chosen.items()}
    base = seconds[base_of(seconds)]
    nothing = even(cost.world_size, 1e15, 0.0)
    rows = [
        Row(
            recording.method,
            seconds[recording.method],
            recording.bytes_per_epoch,
            recording.memory_bytes,
            base / seconds[recording.method],
            max(0.0, 1 - epoch_s(recording, nothing, cores) / seconds[recording.method]),
            gradients=recording.gradients,
        )
        for recording in chosen.values()
    ]
    rates = {}
    if chart:
        for rate, bits_per_s in RATES.items():
            wires = even(cost.world_size, bits_per_s)
            at_rate = [settled(recording, wires, cores) for recording in recordings]
            rates[rate] = {recording.method: epoch_s(recording, wires, cores) for recording in at_rate}
    # A single rank sends nothing: differences between methods are noise.
    recommended = EXACT if cost.world_size == 1 and EXACT in seconds else choose(seconds)
    exact = next((row for row in rows if row.method == EXACT), None)
    if exact is not None and exact.waits < IDLE and exact.epoch_s < WORTH * seconds[recommended]:
        recommended = EXACT
    return Prediction(rows, recommended, _why(rows, recommended), rates)


def settled(recording: Recording, cost: CostModel, cores: int | None) -> Recording:
    """The recording with the gradients' codec that `auto` would choose on these wires."""
    if recording.measured is None:
        return recording
    measured, weights = recording.measured, recording.weights
    codec = sharing.choose(recording.scripts, weights, cost, measured, cores=cores).codec
    if codec == NONE:
        return recording
    scripts = sharing.with_codec(recording.scripts, measured, codec)
    saved = sharing.bytes_of(recording.scripts, weights) - sharing.bytes_of(scripts, weights)
    return replace(recording, scripts=scripts, bytes_per_epoch=recording.bytes_per_epoch - saved, gradients=codec)


def epoch_s(recording: Recording, cost: CostModel, cores: int | None) -> float:
    """Seconds of an epoch, as the weighted mean of the recorded epochs."""
    replayed = replay(recording.scripts, cost, cores=cores)
    weighed = sum(seconds * weight for seconds, weight in zip(replayed, recording.weights, strict=True))
    return weighed / sum(recording.weights) + recording.more_s


def base_of(seconds: Mapping[str, float]) -> str:
    """The method that speed-ups are relative to: exact, or the first if exact is missing."""
    return EXACT if EXACT in seconds else next(iter(seconds))


def comparable(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """The methods that train on the whole graph; all methods, if none does."""
    return {method: epoch for method, epoch in seconds.items() if not is_sampled(method)} or seconds


def choose(seconds: Mapping[str, float]) -> str:
    """The fastest method that trains on the whole graph; of about equally fast ones, the one that changes it least."""
    whole = comparable(seconds)
    least = min(whole.values())
    close = [method for method, epoch in whole.items() if epoch <= CLOSE * least]
    return min(close, key=lambda method: job_of(method, {}, 0).method.gentleness)


def _why(rows: Sequence[Row], recommended: str) -> str:
    by_name = {row.method: row for row in rows}
    chosen, exact = by_name[recommended], by_name.get(EXACT)
    if exact is None:
        return f"the fastest of these; it waits {chosen.waits:.0%} of its epoch for the network"
    if recommended == EXACT:
        return (
            f"float32 messages take {exact.waits:.0%} of its epoch: too little for fewer bytes to pay for their coding"
        )
    if exact.waits < IDLE:
        return (
            f"exact hardly waits ({exact.waits:.0%}), but fewer bytes are less to pack, send and unpack too: "
            f"{recommended} is predicted {chosen.speedup:.2f}x as fast"
        )
    return (
        f"exact waits {exact.waits:.0%} of its epoch for the network; {recommended} is predicted "
        f"{chosen.speedup:.2f}x as fast, and waits {chosen.waits:.0%}"
    )
