"""What a rank is started with. Who starts it need not wait for PyG to be imported."""

from typing import Any

from thinwire.minibatch.methods import Salient
from thinwire.training.job import Job

# What a rank needs; whoever starts several may import it once for all.
PRELOAD = ("thinwire.minibatch.run",)


def work(job: Job[Salient]) -> dict[str, Any]:
    """Train; what came of it, the same on every rank."""
    from thinwire.minibatch.run import train

    return train(job)
