"""A prediction from a few epochs recorded on ranks started here, or on the ranks of the job this process is in."""

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
    """Predict each method on the wires of `cost`; if None, on the wires between these ranks, which are measured.

    `shards` is a folder; if empty, each machine of the job partitions settings' `data` itself.
    """
    with scratch_folder("prediction") as folder:
        profile = folder / "profile.json"
        if cost is not None:
            artifacts.write_json(profile, cost.to_json())
        arguments = (methods, settings, seed, shards, str(profile) if cost is not None else "", limit_s)
        recordings, measured = launch.run(record, *arguments, workers=ranks)[0]
    return predict(recordings, cost or measured, cores=cores)
