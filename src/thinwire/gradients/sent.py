"""What is sent of a step's gradients where they are summed over ranks, group by group, exact before any data. Pure.

A group is a list of tensors' sizes. In float32 (`none`) each group is one all-reduce, with a value for each tensor that
says whether this rank reached it. By a codec each is one message or two (`primitives.py`), and one gather for all
groups tells with a bit a tensor which ones each rank reached.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.codecs import Parts
from thinwire.gradients.algorithms import ALL_GATHER, ALL_REDUCE, DENSE, NONE, TWO_STEP, Algorithm, algorithm
from thinwire.gradients.layout import parts_of, slices_of
from thinwire.links.routes import reduce_heir, ring_heir

AUTO = "auto"


@dataclass(frozen=True)
class Message:
    """A collective, and the bytes that a rank sends in it to each peer."""

    kind: str
    bytes_to: dict[int, int]


def check(codec: str) -> None:
    """Raise unless gradients of weights that an optimizer of ours steps by can be sent so; `auto` can."""
    if codec != AUTO and algorithm(codec).has_momentum:
        raise ValueError(
            f"gradients {codec!r}: it has momentum of its own, and so have the optimizers here; give topk:RATIO, or "
            "gradients.wrap with an SGD of yours"
        )


def primitive_of(chosen: Algorithm, sizes: Sequence[int], world_size: int) -> str:
    """The primitive by which ranks send the fewest bytes; of two that send as many, the one with fewer messages."""
    if ALL_REDUCE in chosen.primitives:
        return ALL_REDUCE
    once, twice = (sum(_payloads(chosen, sizes, primitive, world_size)) for primitive in (ALL_GATHER, TWO_STEP))
    # Each rank's payload to all others; or to the owners of slices, and their sums to all others.
    return ALL_GATHER if world_size * once <= 2 * twice else TWO_STEP


def group_messages(sizes: Sequence[int], codec: str, world_size: int, rank: int) -> list[Message]:
    """What this rank's door will count for a group, message by message."""
    n, chosen = world_size, algorithm(codec)
    if chosen.codec is None:
        return [_reduced(4 * (sum(sizes) + len(sizes)), n, rank)]
    if codec in DENSE:
        return [_reduced(2 * sum(sizes), n, rank)]
    primitive = primitive_of(chosen, sizes, n)
    nbytes = _payloads(chosen, sizes, primitive, n)
    if primitive == ALL_REDUCE:
        return [_reduced(nbytes[0] - 1, n, rank)]  # a sum tells by itself whether all values were finite
    others = [peer for peer in range(n) if peer != rank]
    if primitive == ALL_GATHER:
        return [Message("all_gather", {ring_heir(rank, n): (n - 1) * nbytes[0]})]
    return [
        Message("all_to_all", {peer: nbytes[peer] for peer in others}),
        Message("all_to_all", dict.fromkeys(others, nbytes[rank])),
    ]


def flags_message(groups: Sequence[Sequence[int]], codec: str, world_size: int, rank: int) -> Message | None:
    """The gather that tells which tensors each rank reached, and whether its gradients were finite."""
    if codec == NONE:
        return None
    return Message("all_gather", {ring_heir(rank, world_size): (world_size - 1) * flag_bytes(sum(map(len, groups)))})


def flag_bytes(num_tensors: int) -> int:
    return math.ceil((num_tensors + 1) / 8)


def bytes_of(groups: Sequence[Sequence[int]], codec: str, world_size: int) -> int:
    """The bytes that all ranks together send for one sum."""
    if world_size == 1:
        return 0
    total = 0
    for rank in range(world_size):
        messages = [message for sizes in groups for message in group_messages(sizes, codec, world_size, rank)]
        flags = flags_message(groups, codec, world_size, rank)
        total += sum(sum(message.bytes_to.values()) for message in (*messages, *([flags] if flags else [])))
    return total


def float32_bytes(sizes: Sequence[int], world_size: int) -> int:
    """What a rank would send for a group in float32."""
    return sum(group_messages(sizes, NONE, world_size, 0)[0].bytes_to.values())


def _payloads(chosen: Algorithm, sizes: Sequence[int], primitive: str, world_size: int) -> list[int]:
    """Bytes of each slice, with the byte that says whether all values were finite."""
    assert chosen.codec is not None
    slices = slices_of(sizes, world_size) if primitive == TWO_STEP else [list(sizes)]
    return [Parts(parts_of(pieces, chosen.codec)).nbytes((sum(pieces),)) + 1 for pieces in slices]


def _reduced(nbytes: int, world_size: int, rank: int) -> Message:
    heir = reduce_heir(rank, world_size)
    return Message("all_reduce", {heir: math.ceil(2 * (world_size - 1) / world_size * nbytes)})
