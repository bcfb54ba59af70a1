"""What ranks run: whole runs one after the other, in one job."""

from collections.abc import Sequence
from typing import Any

from thinwire.fullgraph import Method
from thinwire.fullgraph.run import train
from thinwire.training.job import Job


def results(todo: Sequence[Job[Method]]) -> list[dict[str, Any]]:
    return [train(job) for job in todo]
