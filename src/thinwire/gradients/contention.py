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
PASSES = 4
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
    longer = []
    for count, size in ((MANY, SMALL_BYTES), (FEW, large)):
        posted = min(count, num_tensors)
        places = {num_tensors * number // posted: 1 for number in range(posted)}
        times = [_beside(door, backward, places, size, device)[0] for _ in range(PASSES)]
        longer.append((posted, (n - 1) * size, max(usual(times) - alone_s, 0.0)))
    (many, small_bytes, many_s), (few, large_bytes, few_s) = longer
    byte_s = max(few_s / few - many_s / many, 0.0) / (large_bytes - small_bytes)
    queued = int(min(max(alone_s / 2 / gather(SMALL_BYTES), FEW), MANY))
    drained_s = usual([_beside(door, backward, {0: queued}, SMALL_BYTES, device)[1] for _ in range(PASSES)])
    return Contention(
        message_s=max(many_s / many - byte_s * small_bytes, 0.0),
        byte_s=byte_s,
        lag_s=max(drained_s / queued - gather(SMALL_BYTES), 0.0),
    )


def _beside(
    door: Door,
    backward: Callable[[Callable[[int], None]], float],
    places: Mapping[int, int],
    size: int,
    device: torch.device,
) -> tuple[float, float]:
    """Seconds of a pass that posts so many messages at these tensors, and of the last one from post to arrival."""
    data = torch.zeros(size, dtype=torch.uint8, device=device)
    posted: list[Transfer[list[Tensor]]] = []

    def on_ready(number: int) -> None:
        sizes = [size] * door.world_size
        posted.extend(door.all_gather(data, sizes, channel=CHANNEL) for _ in range(places.get(number, 0)))

    seconds = backward(on_ready)
    for transfer in posted:
        transfer.wait()
    return seconds, posted[-1].seconds
