"""Who hands a broadcast on to whom, and what counts as small: the door obeys, the cost model reckons. Pure."""

# Up to this many bytes to or from a peer a collective is over before its streams could get into each other's way.
SMALL_BYTES = 65_536
# A broadcast of up to this many bytes costs hops and not bytes: a tree has fewer.
TREE_BYTES = 4_096
# What a rank of a chain takes in before it hands it on.
CHUNK_BYTES = 131_072


def ring_heir(rank: int, world_size: int) -> int:
    """To whom gloo's all-gather sends."""
    return (rank + 1) % world_size


def reduce_heir(rank: int, world_size: int) -> int:
    """To whom gloo's all-reduce sends: the other way round."""
    return (rank - 1) % world_size


def tree_heirs(rank: int, source: int, world_size: int) -> list[int]:
    """A binomial tree rooted at the source, few hops deep: gloo's own broadcast."""
    place = (rank - source) % world_size
    heirs = []
    reach = 1
    while reach < world_size:
        if place < reach and place + reach < world_size:
            heirs.append((place + reach + source) % world_size)
        reach *= 2
    return heirs


def chain_heirs(rank: int, source: int, world_size: int) -> list[int]:
    """The next rank, but for the last before the source: every link carries the bytes once."""
    after = (rank + 1) % world_size
    return [] if after == source else [after]
