"""What transfers and computation take from each other: on a CPU both want the same cores.

Backward is run again with messages on their way, few large ones and many small ones. By how much longer it takes tells
what a message costs it, and what a byte does. Then with small ones that queue from its start: by how much later those
arrive than alone tells what it costs them.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire.gradients.costs import Contention
from thinwire.links import Door, Transfer
from thinwire.links.cost import Hinge

# So many that what one message takes shows above the noise of a pass.
MANY, SMALL_BYTES = 64, 2_000
FEW = 4
LEAST_BYTES, MOST_BYTES = 20_000, 4_000_000
PASSES = 6
CHANNEL = "profile.contention"


def measure(
    door: Door,
    backward: Callable[[Callable[[int], None]], float],
    num_tensors: int,
    usual: Callable[[Sequence[float]], float],
    alone_s: float,
    gather: Hinge,
    device: torch.device,
) -> Contention:
    """`backward(on_ready)` takes a pass and calls with each tensor's number; `usual` makes one of all ranks' times."""
    n = door.world_size
    if n == 1 or not num_tensors:
        return Contention(0.0, 0.0)
    # About as long on their way as half of backward.
    each_s = alone_s / (2 * FEW)
    large = int(min(max((each_s - gather.fixed_s) / max(gather.slope, 1e-15), LEAST_BYTES), MOST_BYTES))
    many, few = min(MANY, num_tensors), min(FEW, num_tensors)
    queued = int(min(max(alone_s / 2 / gather(SMALL_BYTES), FEW), MANY))
    kinds: list[tuple[dict[int, int], int]] = [
        ({}, 0),
        ({num_tensors * number // many: 1 for number in range(many)}, SMALL_BYTES),
        ({num_tensors * number // few: 1 for number in range(few)}, large),
        ({0: queued}, SMALL_BYTES),
    ]
    # One of each in turn: a machine that changes its pace does so for all.
    passes = [[_beside(door, backward, places, size, device) for places, size in kinds] for _ in range(PASSES)]
    many_s, few_s = (max(usual([each[kind][0] - each[0][0] for each in passes]), 0.0) for kind in (1, 2))
    drained_s = usual([each[3][1] for each in passes])
    small_bytes, large_bytes = (n - 1) * SMALL_BYTES, (n - 1) * large
    byte_s = max(few_s / few - many_s / many, 0.0) / (large_bytes - small_bytes)
    return Contention(
        message_s=max(many_s / many - byte_s * small_bytes, 0.0),
        byte_s=byte_s,
        lag_s=max(drained_s / (queued - 1) - gather(SMALL_BYTES), 0.0),
    )


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
    data = torch.zeros(size, dtype=torch.uint8, device=device)
    posted: list[Transfer[list[Tensor]]] = []

    def on_ready(number: int) -> None:
        sizes = [size] * door.world_size
        posted.extend(door.all_gather(data, sizes, channel=CHANNEL) for _ in range(places.get(number, 0)))

    seconds = backward(on_ready)
    for transfer in posted:
        transfer.wait()
    return seconds, posted[-1].seconds - posted[0].seconds if posted else 0.0
