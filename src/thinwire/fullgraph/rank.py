"""The entry point of a rank. PyG is imported only when it is called."""

from typing import Any

from thinwire.fullgraph.methods import Method
from thinwire.training.job import Job

# Modules that a rank needs. A launcher of several ranks may import them once for all.
PRELOAD = ("thinwire.fullgraph.run",)


def work(job: Job[Method]) -> dict[str, Any]:
    """Train, and return the result, which is the same on all ranks."""
    from thinwire.fullgraph.run import train

    return train(job)
