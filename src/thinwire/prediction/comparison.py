"""From recordings to a row for each method, which one to take and why, and how that changes with the rate. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from thinwire.bench.methods import is_sampled, job_of
from thinwire.fullgraph import Exact
from thinwire.links.cost import CostModel
from thinwire.prediction.recording import Recording
from thinwire.prediction.replay import replay
from thinwire.prediction.wires import RATES, even

MODEL = "replay"
EXACT = Exact.name
# Predictions differ by less than they err: of two that are about equal, the one that changes training less.
CLOSE = 1.02
# Where exact hardly waits, what another seems to win must be more than a prediction errs.
IDLE, WORTH = 0.05, 1.10


@dataclass(frozen=True)
class Row:
    """A method on these wires."""

    method: str
    epoch_s: float
    bytes_per_epoch: int
    memory_bytes: int
    speedup: float  # of exact's epoch
    waits: float  # share of the epoch that is not there on wires that take nothing
    model: str = MODEL  # what the seconds come from


@dataclass(frozen=True)
class Prediction:
    """`rates`: seconds of an epoch by method at each rate, were all links alike."""

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
    """On these wires; `cores` that all ranks share, None: each has its own."""
    seconds = {each.method: epoch_s(each, cost, cores) for each in recordings}
    base = seconds[base_of(seconds)]
    nothing = even(cost.world_size, 1e15, 0.0)
    rows = [
        Row(
            each.method,
            seconds[each.method],
            each.bytes_per_epoch,
            each.memory_bytes,
            base / seconds[each.method],
            max(0.0, 1 - epoch_s(each, nothing, cores) / seconds[each.method]),
        )
        for each in recordings
    ]
    rates = {}
    if chart:
        for rate, bits_per_s in RATES.items():
            wires = even(cost.world_size, bits_per_s)
            rates[rate] = {each.method: epoch_s(each, wires, cores) for each in recordings}
    # One rank sends nothing: what differs is noise.
    recommended = EXACT if cost.world_size == 1 and EXACT in seconds else choose(seconds)
    exact = next((row for row in rows if row.method == EXACT), None)
    if exact is not None and exact.waits < IDLE and exact.epoch_s < WORTH * seconds[recommended]:
        recommended = EXACT
    return Prediction(rows, recommended, _why(rows, recommended), rates)


def epoch_s(recording: Recording, cost: CostModel, cores: int | None) -> float:
    """In the mean of many epochs."""
    every = replay(recording.scripts, cost, cores=cores)
    weighed = sum(seconds * weight for seconds, weight in zip(every, recording.weights, strict=True))
    return weighed / sum(recording.weights) + recording.more_s


def base_of(seconds: Mapping[str, float]) -> str:
    """What speed-ups are over: exact, or else the first."""
    return EXACT if EXACT in seconds else next(iter(seconds))


def comparable(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Of those that train on the whole graph; of all, where none does."""
    return {method: each for method, each in seconds.items() if not is_sampled(method)} or seconds


def choose(seconds: Mapping[str, float]) -> str:
    """The quickest of those that train on the whole graph; of about equal ones the gentlest."""
    whole = comparable(seconds)
    least = min(whole.values())
    close = [method for method, each in whole.items() if each <= CLOSE * least]
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
