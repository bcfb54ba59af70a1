"""What a rank is started with. Who starts it need not wait for PyG to be imported."""

from typing import Any

from thinwire.fullgraph.job import Job
from thinwire.launch import Member


def work(member: Member, job: Job) -> dict[str, Any]:
    """Train; what came of it, the same on every rank."""
    from thinwire.fullgraph.run import train

    return train(member, job)
