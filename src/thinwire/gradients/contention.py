"""What transfers and computation take from each other: on a CPU both want the same cores.

Backward is run again with messages on their way, few large ones and many small ones. By how much longer it takes tells
what a message costs it, and what a byte does. Then with small ones that queue from its start: by how much later those
arrive than others, queued when nothing is computed, tells what it costs them. Never so many that they outlast backward:
what is still on its way then has cost it nothing yet.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from thinwire.gradients import columns
from thinwire.gradients.costs import Contention
from thinwire.links import Door, Transfer
from thinwire.links.cost import Hinge

# So many at most; beside backward each takes about twice its time.
MANY, SMALL_BYTES = 64, 2_000
LONGER = 2
FEW = 4
LEAST_BYTES, MOST_BYTES = 20_000, 4_000_000
PASSES = 8
CHANNEL = "profile.contention"


def measure(
    door: Door,
    backward: Callable[[Callable[[int], None]], float],
    num_tensors: int,
    alone_s: float,
    gather: Hinge,
    device: torch.device,
) -> Contention:
    """`backward(on_ready)` takes a pass and calls with each tensor's number; alone it takes `alone_s`."""
    n = door.world_size
    if n == 1 or not num_tensors:
        return Contention(0.0, 0.0)
    # About as long on their way as half of backward.
    each_s = alone_s / (2 * FEW)
    large = int(min(max((each_s - gather.fixed_s) / max(gather.slope, 1e-15), LEAST_BYTES), MOST_BYTES))
    queued = int(min(max(alone_s / 2 / gather(SMALL_BYTES), FEW), MANY))
    many, few = min(max(queued // LONGER, FEW), num_tensors), min(FEW, num_tensors)
    kinds: list[tuple[dict[int, int], int]] = [
        ({}, 0),
        ({num_tensors * number // many: 1 for number in range(many)}, SMALL_BYTES),
        ({num_tensors * number // few: 1 for number in range(few)}, large),
        ({0: queued}, SMALL_BYTES),
    ]
    # One of each in turn: a machine that changes its pace does so for all.
    passes = [[_beside(door, backward, places, size, device) for places, size in kinds] for _ in range(PASSES)]
    idle = [_beside(door, _nothing, {0: queued}, SMALL_BYTES, device)[1] for _ in range(PASSES)]
    rows = [
        [each[1][0] - each[0][0], each[2][0] - each[0][0], each[3][1], alone]
        for each, alone in zip(passes, idle, strict=True)
    ]
    many_s, few_s, drained_s, idle_s = columns.medians(door, rows)
    many_s, few_s = max(many_s, 0.0), max(few_s, 0.0)
    pace_s = min(idle_s / (queued - 1), gather(SMALL_BYTES))
    small_bytes, large_bytes = (n - 1) * SMALL_BYTES, (n - 1) * large
    byte_s = max(few_s / few - many_s / many, 0.0) / (large_bytes - small_bytes)
    return Contention(
        message_s=max(many_s / many - byte_s * small_bytes, 0.0),
        byte_s=byte_s,
        lag_s=max(drained_s / (queued - 1) - pace_s, 0.0),
        haste_s=gather(SMALL_BYTES) - pace_s,
    )


def _nothing(on_ready: Callable[[int], None]) -> float:
    on_ready(0)
    return 0.0


def _beside(
    door: Door,
    backward: Callable[[Callable[[int], None]], float],
    places: Mapping[int, int],
    size: int,
    device: torch.device,
) -> tuple[float, float]:
    """Seconds of a pass that posts so many messages at these tensors, and from the first one's arrival to the last's.

    Not from the post: a rank whose pass begins late is waited for once, however many messages there are.
    """
    door.barrier(channel=columns.CHANNEL)
    data = torch.zeros(size, dtype=torch.uint8, device=device)
    posted: list[Transfer[list[Tensor]]] = []

    def on_ready(number: int) -> None:
        sizes = [size] * door.world_size
        posted.extend(door.all_gather(data, sizes, channel=CHANNEL) for _ in range(places.get(number, 0)))

    seconds = backward(on_ready)
    for transfer in posted:
        transfer.wait()
    return seconds, posted[-1].seconds - posted[0].seconds if posted else 0.0
