"""A prediction from this machine: a few epochs on ranks that are started here, or on those of the job it is in."""

from collections.abc import Sequence
from typing import Any

from thinwire import artifacts, launch
from thinwire.bench.methods import COMPARED
from thinwire.links.cost import CostModel
from thinwire.links.exchange import LIMIT_S
from thinwire.prediction.comparison import Prediction, predict
from thinwire.prediction.recording import record
from thinwire.scratch import scratch_folder


def predict_here(
    shards: str,
    settings: dict[str, Any],
    *,
    ranks: int,
    cost: CostModel | None = None,
    cores: int | None = None,
    methods: Sequence[str] = COMPARED,
    seed: int = 0,
    limit_s: float = LIMIT_S,
) -> Prediction:
    """On the wires of `cost`; none given: on those between these ranks, as they are measured.

    `shards` is a folder; where empty, each machine of a job partitions settings' `data` itself.
    """
    with scratch_folder("prediction") as folder:
        profile = folder / "profile.json"
        if cost is not None:
            artifacts.write_json(profile, cost.to_json())
        arguments = (methods, settings, seed, shards, str(profile) if cost is not None else "", limit_s)
        found, between = launch.run(record, *arguments, workers=ranks)[0]
    return predict(found, cost or between, cores=cores)
