"""A forecast from this machine: rehearse on ranks that are started here, or on those of the job that this is one of."""

from collections.abc import Sequence
from typing import Any

from thinwire import artifacts, launch
from thinwire.forecast.forecast import Forecast, forecast
from thinwire.forecast.rehearse import METHODS, rehearse
from thinwire.links.cost import CostModel
from thinwire.links.exchange import LIMIT_S
from thinwire.scratch import scratch_folder


def foretell(
    shards: str,
    settings: dict[str, Any],
    *,
    ranks: int,
    cost: CostModel | None = None,
    cores: int | None = None,
    methods: Sequence[str] = METHODS,
    seed: int = 0,
    limit_s: float = LIMIT_S,
) -> Forecast:
    """On the wires of `cost`; none given: on those between these ranks, as they are measured.

    `shards` is a folder; where empty, each machine of a job partitions settings' `data` itself.
    """
    with scratch_folder("forecast") as folder:
        profile = folder / "profile.json"
        if cost is not None:
            artifacts.write_json(profile, cost.to_json())
        arguments = (methods, settings, seed, shards, str(profile) if cost is not None else "", limit_s)
        found, between = launch.run(rehearse, *arguments, workers=ranks)[0]
    return forecast(found, cost or between, cores=cores)
