"""Collectives made of point-to-point messages, where gloo's own use Ethernet badly.

For CPU tensors only: NCCL knows the links. These functions run on a thread of the door's.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from thinwire.links.routes import CHUNK_BYTES, SMALL_BYTES, chain_heirs

# A message's own time limit. The door's limit counts instead: gloo's would end every connection of the group.
UNLIMITED = timedelta(days=7)
# Ranks are those in the group; None is all.
Group = dist.ProcessGroup | None


def exchange(parts: Sequence[Tensor], views: Sequence[Tensor], *, group: Group, tag: int) -> None:
    """parts[p] to rank p, views[p] from it, round by round; small messages are not waited for before the end."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    views[me].copy_(parts[me])
    small: list[Any] = []
    for distance in range(1, n):
        # Round r: to the r-th rank after me, from the r-th before me. Each link then carries one stream each way.
        # gloo's own all-to-all starts all streams at once; where several meet at one receiver they share its link
        # badly, and the last one ends up to 1.5 times later than the link's rate explains (docs/decisions/0005).
        to, source = (me + distance) % n, (me - distance) % n
        large: list[Any] = []
        if views[source].numel():
            work = dist.irecv(views[source], group_src=source, group=group, tag=tag)
            (large if views[source].nbytes > SMALL_BYTES else small).append(work)
        if parts[to].numel():
            work = dist.isend(parts[to], group_dst=to, group=group, tag=tag)
            (large if parts[to].nbytes > SMALL_BYTES else small).append(work)
        _finish(large)
    _finish(small)


def chain(data: Tensor, source: int, *, group: Group, tag: int) -> None:
    """The source's bytes from rank to rank, chunk by chunk: every link carries them once, all links at a time.

    gloo's own broadcast is a tree: its source sends everything twice or more, by streams that share its link.
    """
    n, me = dist.get_world_size(group), dist.get_rank(group)
    before = None if me == source else (me - 1) % n
    relay(data, before, chain_heirs(me, source, n), chunk_bytes=CHUNK_BYTES, group=group, tag=tag)


def relay(data: Tensor, source: int | None, heirs: Sequence[int], *, chunk_bytes: int, group: Group, tag: int) -> None:
    """Bytes from the source, each chunk handed on to all heirs as soon as it is here. No source: this rank's bytes."""
    chunks = data.split(chunk_bytes)
    incoming = [
        None if source is None else dist.irecv(chunk, group_src=source, group=group, tag=tag) for chunk in chunks
    ]
    outgoing: list[Any] = []
    for chunk, arrival in zip(chunks, incoming, strict=True):
        if arrival is not None:
            arrival.wait(UNLIMITED)
        outgoing += [dist.isend(chunk, group_dst=heir, group=group, tag=tag) for heir in heirs]
    _finish(outgoing)


def _finish(works: list[Any]) -> None:
    while works:
        works.pop(0).wait(UNLIMITED)
