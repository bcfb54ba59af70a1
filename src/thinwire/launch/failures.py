"""How starting ranks can fail. Imports no torch, so that a report of it need not wait for that."""

import re


class LabUnavailable(RuntimeError):
    """This machine can't emulate hosts. The message says what is missing and what to do."""


class RankFailed(RuntimeError):
    """A rank failed. The message is its traceback, or how its process died."""

    def __init__(self, rank: int, world_size: int, how: str) -> None:
        super().__init__(f"rank {rank} of {world_size} failed: {how}")
        self.rank = rank
        self.how = how
        # One of thinwire's errors explains itself: its words are enough, without the traceback.
        ours = list(re.finditer(r"^thinwire\.[\w.]+: ", how, flags=re.MULTILINE))
        self.reason = how[ours[-1].end() :].strip() if ours else None


class StartFailed(ValueError):
    """A rank did not come, or came for other work or with another thinwire. The message says which."""
