"""Which epoch it is: all places of a model look here for what to send, whether to wait, and what to seed with."""

from thinwire.fullgraph.plan import Plan


class Clock:
    """Moved on by every forward pass in training."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.epoch = -1  # none yet
        self.lowest: object = None  # of this pass: the place nearest to the features that sends; the last one backward

    @property
    def stale(self) -> bool:
        return self.epoch >= 0 and self.plan.is_stale(self.epoch)

    @property
    def seed(self) -> tuple[int, int]:
        return (self.plan.seed, self.epoch)
