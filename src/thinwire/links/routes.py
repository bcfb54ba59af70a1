"""Which rank passes a collective's bytes on to which. The door sends so, and the cost model reckons so. Pure."""

# Up to this many bytes to or from a peer a collective is over before its streams could get into each other's way.
SMALL_BYTES = 65_536
# A broadcast of up to this many bytes costs hops and not bytes: a tree has fewer.
TREE_BYTES = 4_096
# A rank of a chain hands on so much at a time.
CHUNK_BYTES = 131_072


def ring_heir(rank: int, world_size: int) -> int:
    """The rank that gloo's all-gather sends to."""
    return (rank + 1) % world_size


def reduce_heir(rank: int, world_size: int) -> int:
    """The rank that gloo's all-reduce sends to: it goes round the other way."""
    return (rank - 1) % world_size


def tree_heirs(rank: int, source: int, world_size: int) -> list[int]:
    """The ranks that this one sends to in gloo's broadcast, a binomial tree from the source: few hops."""
    place = (rank - source) % world_size
    heirs = []
    reach = 1
    while reach < world_size:
        if place < reach and place + reach < world_size:
            heirs.append((place + reach + source) % world_size)
        reach *= 2
    return heirs


def chain_heirs(rank: int, source: int, world_size: int) -> list[int]:
    """The rank that this one sends to in a chain from the source: every link carries the bytes once."""
    after = (rank + 1) % world_size
    return [] if after == source else [after]
