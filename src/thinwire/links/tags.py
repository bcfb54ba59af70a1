"""Tags: numbers by which gloo keeps messages apart that are under way between the same two ranks at the same time.

Each name has a block of tags, the same on all ranks: the first rank to use the name takes the next free block and
writes that to the store. Within a block tags are used again and again; one that is still in use between the same two
ranks is refused.
"""

import threading
from collections.abc import Sequence

import torch.distributed as dist

# Tags in a block, and blocks: together as many as gloo's tags can hold.
SPAN = 1 << 12
BLOCKS = 1 << 18
# A direction and a rank: messages to or from different ranks may share a tag.
End = tuple[str, int]
EVERYBODY: End = ("all", -1)


class Tags:
    """The tags of one process group: all its doors share them."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._blocks: dict[str, int] = {}
        self._under_way: set[tuple[int, End]] = set()

    def of_messages(self, channel: str) -> int:
        """Point to point messages of a channel arrive in the order in which they were sent: one tag is enough."""
        return self._block("messages", channel) * SPAN

    def take(self, name: str, number: int, ends: Sequence[End] = (EVERYBODY,)) -> int:
        """The tag of `number` under this name with these other ends, until it is given back."""
        # A name that has more than a block's numbers at a time, a large plan's routes say, has several blocks.
        block, place = divmod(number, SPAN)
        tag = self._block(str(block), name) * SPAN + place
        with self._lock:
            if any((tag, end) in self._under_way for end in ends):
                raise RuntimeError(
                    f"{name!r}: number {number} is still under way from an earlier time; wait for what was begun before"
                )
            self._under_way.update((tag, end) for end in ends)
        return tag

    def give_back(self, tag: int, ends: Sequence[End] = (EVERYBODY,)) -> None:
        with self._lock:
            self._under_way.difference_update((tag, end) for end in ends)

    def _block(self, use: str, name: str) -> int:
        """`use` is one word, so no two uses and names make the same key."""
        key = f"{use} {name}"
        with self._lock:
            if key not in self._blocks:
                proposed = self._store.add("blocks", 1)
                block = int(self._store.compare_set(f"block {key}", "", str(proposed)))
                if block >= BLOCKS:
                    raise RuntimeError(f"{name!r} would be channel number {block}; use fewer than {BLOCKS} channels")
                self._blocks[key] = block
            return self._blocks[key]
