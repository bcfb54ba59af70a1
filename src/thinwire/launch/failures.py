"""How starting ranks can fail. Without torch, so that whoever reports it need not have waited for that."""

import re


class LabUnavailable(RuntimeError):
    """This machine can't emulate hosts. The message says what is missing and what to do."""


class RankFailed(RuntimeError):
    """A rank did not end well. The message is that rank's traceback, or how the process died."""

    def __init__(self, rank: int, world_size: int, how: str) -> None:
        super().__init__(f"rank {rank} of {world_size} failed: {how}")
        self.rank = rank
        self.how = how
        # One of our own errors explains itself: what it says, without the way there.
        own = list(re.finditer(r"^thinwire\.[\w.]+: ", how, flags=re.MULTILINE))
        self.reason = how[own[-1].end() :].strip() if own else None


class StartFailed(ValueError):
    """Ranks did not all come, or not for the same. The message says which."""
