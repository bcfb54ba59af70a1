"""The entry point of a rank. PyG is imported only when it is called."""

from typing import Any

from thinwire.minibatch.methods import Salient
from thinwire.training.job import Job

# Modules that a rank needs. A launcher of several ranks may import them once for all.
PRELOAD = ("thinwire.minibatch.run",)


def work(job: Job[Salient]) -> dict[str, Any]:
    """Train, and return the result, which is the same on all ranks."""
    from thinwire.minibatch.run import train

    return train(job)
