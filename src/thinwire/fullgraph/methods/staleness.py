"""Bounded staleness (Sylvie): all epochs are stale but the first and each `sync_every`-th. Pure."""

from collections import Counter
from itertools import count

from thinwire.training.window import NOTED, WARM, Window, even


def check(sync_every: int) -> None:
    """Raise if this is not a valid period."""
    if sync_every < 0:
        raise ValueError(f"sync_every is {sync_every}; give 0 (never) or more")


def is_nth(epoch: int, sync_every: int) -> bool:
    """Whether this is a `sync_every`-th epoch."""
    return sync_every > 0 and (epoch + 1) % sync_every == 0


def is_stale(epoch: int, sync_every: int) -> bool:
    """The first epoch is synchronous, so that no halo starts from zeros."""
    return epoch > 0 and not is_nth(epoch, sync_every)


def window(sync_every: int) -> Window:
    """The epochs whose times stand for all epochs.

    A stale epoch waits for messages of the epoch before it. The first noted one waits for none, since earlier messages
    are not noted, and the second one waits for two epochs' messages: neither counts. The other epochs are weighted by
    how often their kind occurs in a period: synchronous, the first after that, or another stale one.
    """
    if not sync_every:
        return Window(0, WARM, [0.0, 0.0, *even()])
    begin = next(epoch for epoch in count(WARM + 3) if is_nth(epoch, sync_every))
    kinds = [_kind(epoch, sync_every) for epoch in range(begin, begin + 2 + NOTED)]
    counts = Counter(_kind(epoch, sync_every) for epoch in range(begin, begin + sync_every))
    shares = {kind: counts[kind] / (kinds.count(kind) * sync_every) for kind in counts}
    return Window(begin - WARM - 2, WARM, [0.0, 0.0, *(shares[kind] for kind in kinds)])


def _kind(epoch: int, sync_every: int) -> tuple[bool, bool]:
    """Whether this epoch is stale, and whether the one before it is."""
    return is_stale(epoch, sync_every), is_stale(epoch - 1, sync_every)
