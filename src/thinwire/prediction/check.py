"""Workload `predict`: predictions beside measurements, at several rates of the same emulated hosts."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from thinwire import artifacts, launch
from thinwire.bench import fullgraph, harness
from thinwire.bench.case import Case
from thinwire.bench.result import CaseResult, MethodRow
from thinwire.launch.lab import parse_rate
from thinwire.prediction.comparison import Prediction, predict
from thinwire.prediction.recording import record
from thinwire.prediction.wires import even
from thinwire.scratch import scratch_folder
from thinwire.training import machine

WORKLOAD = "predict"
RATES = "rates"


def check(case: Case) -> None:
    """Raise if the case lacks rates, or has unknown methods or settings."""
    if not rates_of(case):
        raise ValueError(f'{case.name}: settings.{RATES} is missing; give some, like "100mbit,1gbit"')
    fullgraph.check(case.methods, _without_rates(case.settings))


def rates_of(case: Case) -> list[str]:
    rates = [word.strip() for word in str(case.settings.get(RATES, "")).split(",") if word.strip()]
    for rate in rates:
        parse_rate(rate)
    return rates


def run(case: Case, *, on_progress: Callable[[float, str], None] = lambda share, what: None) -> CaseResult:
    """Record each method once on this machine, then measure in a lab at each rate. A row is a method at a rate."""
    rates = rates_of(case)
    on_progress(0.0, "a few epochs of each method here")
    predictions = _predictions(case, rates)
    rows: list[MethodRow] = []
    failed = None
    for number, rate in enumerate(rates):
        begun, share = (number + 1) / (len(rates) + 1), 1 / (len(rates) + 1)

        def on_part(part: float, what: str, begun: float = begun, share: float = share, rate: str = rate) -> None:
            on_progress(begun + part * share, f"{rate}: {what}")

        at_rate = replace(case, workload="fullgraph", rate=rate, settings=_without_rates(case.settings))
        result = harness.run(at_rate, on_progress=on_part)
        rows += beside(result.rows, predictions[rate], rate)
        failed = failed or result.failed
    return CaseResult(case, rows, failed)


def beside(measured: Sequence[MethodRow], prediction: Prediction, rate: str) -> list[MethodRow]:
    """Each measured row with its prediction; the recommended method's row also has its time over the best's. Pure."""
    predicted = {row.method: row.epoch_s for row in prediction.rows}
    seconds = {row.method: row.seconds_median for row in measured}
    least = min(seconds.values(), default=float("nan"))
    rows = []
    for row in measured:
        figures: dict[str, Any] = {**(row.more or {}), "at": rate, "predicted_s": predicted[row.method]}
        if row.method == prediction.recommended:
            figures["recommended_over_best"] = row.seconds_median / least
        rows.append(replace(row, method=f"{row.method} at {rate}", more=figures))
    return rows


def errors(rows: Sequence[MethodRow]) -> tuple[float, float]:
    """The median and the largest relative error of the predictions."""
    off = [abs((row.more or {})["predicted_s"] / row.seconds_median - 1) for row in rows]
    return (statistics.median(off), max(off)) if off else (float("nan"), float("nan"))


def _predictions(case: Case, rates: Sequence[str]) -> dict[str, Prediction]:
    ranks = case.hosts * case.ranks_per_host
    with scratch_folder("predict") as folder:
        fullgraph.set_up(case, folder)
        profile = folder / "profile.json"
        # Any rate will do: where all links are alike, the choice of bits does not depend on it.
        artifacts.write_json(profile, even(ranks, parse_rate(rates[0])).to_json())
        arguments = (
            case.methods,
            _without_rates(case.settings),
            case.seed,
            str(folder / "shards"),
            str(profile),
            case.limit_s,
        )
        recordings, _ = launch.run(record, *arguments, workers=ranks)[0]
    cores = machine.cores()  # emulated hosts share this machine's
    return {rate: predict(recordings, even(ranks, parse_rate(rate)), cores=cores, chart=False) for rate in rates}


def _without_rates(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != RATES}
