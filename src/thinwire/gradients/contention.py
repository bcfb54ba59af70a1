"""How transfers and computation slow each other down: on a CPU both use the same cores.

Backward is run with a few large messages under way, and with many small ones. How much longer it takes tells what a
message and what a byte cost backward. Then it is run with small messages that queue from its start. How much later
these arrive than messages queued while nothing is computed tells what backward costs them. The messages must not
outlast backward: those still on their way at its end have not cost it anything yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire.gradients import columns
from thinwire.gradients.costs import Contention
from thinwire.links import Door, Transfer
from thinwire.links.cost import Hinge

# The most small messages of a pass, and their size.
MANY, SMALL_BYTES = 64, 2_000
# During backward a message takes about this many times as long.
LONGER = 2
FEW = 4
LEAST_BYTES, MOST_BYTES = 20_000, 4_000_000
PASSES = 8
CHANNEL = "profile.contention"


@dataclass(frozen=True)
class Load:
    """Messages that a pass sends, of `size` bytes: `at_tensor[number]` of them when that tensor's gradient is ready."""

    size: int = 0
    at_tensor: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a pass, and seconds from the arrival of its first message to the arrival of its last.

    Not from the post: the first message also waits for the rank whose pass begins last.
    """

    seconds: float
    arriving_s: float


@dataclass(frozen=True)
class Round:
    """One pass of each kind in turn, so that a change of the machine's speed affects all kinds alike."""

    alone: PassTimes
    many: PassTimes  # small messages, over all of backward
    few: PassTimes  # large messages, over all of backward
    queued: PassTimes  # small messages that queue from backward's start


def measure(
    door: Door,
    backward: Callable[[Callable[[int], None]], float],
    num_tensors: int,
    alone_s: float,
    gather: Hinge,
    device: torch.device,
) -> Contention:
    """`backward(on_ready)` runs a pass and calls `on_ready` with each tensor's number. Alone it takes `alone_s`."""
    n = door.world_size
    if n == 1 or not num_tensors:
        return Contention(0.0, 0.0)
    # The few large messages together take about half as long as backward.
    message_s = alone_s / (2 * FEW)
    large = int(min(max((message_s - gather.fixed_s) / max(gather.slope, 1e-15), LEAST_BYTES), MOST_BYTES))
    queued = int(min(max(alone_s / 2 / gather(SMALL_BYTES), FEW), MANY))
    many, few = min(max(queued // LONGER, FEW), num_tensors), min(FEW, num_tensors)
    spread_many, spread_few = _spread(many, SMALL_BYTES, num_tensors), _spread(few, large, num_tensors)
    queue = Load(SMALL_BYTES, {0: queued})
    rounds = [
        Round(
            alone=_pass(door, backward, Load(), device),
            many=_pass(door, backward, spread_many, device),
            few=_pass(door, backward, spread_few, device),
            queued=_pass(door, backward, queue, device),
        )
        for _ in range(PASSES)
    ]
    idle = [_pass(door, _nothing, queue, device) for _ in range(PASSES)]
    rows = [
        [
            times.many.seconds - times.alone.seconds,
            times.few.seconds - times.alone.seconds,
            times.queued.arriving_s,
            undisturbed.arriving_s,
        ]
        for times, undisturbed in zip(rounds, idle, strict=True)
    ]
    many_s, few_s, beside_s, idle_s = columns.medians(door, rows)
    many_s, few_s = max(many_s, 0.0), max(few_s, 0.0)
    pace_s = min(idle_s / (queued - 1), gather(SMALL_BYTES))
    small_bytes, large_bytes = (n - 1) * SMALL_BYTES, (n - 1) * large
    byte_s = max(few_s / few - many_s / many, 0.0) / (large_bytes - small_bytes)
    return Contention(
        message_s=max(many_s / many - byte_s * small_bytes, 0.0),
        byte_s=byte_s,
        lag_s=max(beside_s / (queued - 1) - pace_s, 0.0),
        haste_s=gather(SMALL_BYTES) - pace_s,
    )


def _spread(messages: int, size: int, num_tensors: int) -> Load:
    """Messages spread evenly over backward, at most one for each tensor."""
    return Load(size, {num_tensors * number // messages: 1 for number in range(messages)})


def _nothing(on_ready: Callable[[int], None]) -> float:
    on_ready(0)
    return 0.0


def _pass(
    door: Door, backward: Callable[[Callable[[int], None]], float], load: Load, device: torch.device
) -> PassTimes:
    door.barrier(channel=columns.CHANNEL)
    data = torch.zeros(load.size, dtype=torch.uint8, device=device)
    posted: list[Transfer[list[Tensor]]] = []

    def on_ready(number: int) -> None:
        sizes = [load.size] * door.world_size
        posted.extend(door.all_gather(data, sizes, channel=CHANNEL) for _ in range(load.at_tensor.get(number, 0)))

    seconds = backward(on_ready)
    for transfer in posted:
        transfer.wait()
    return PassTimes(seconds, posted[-1].seconds - posted[0].seconds if posted else 0.0)
