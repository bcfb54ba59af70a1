"""What a codec costs a rank: groups are encoded, added up and decoded without being sent, on all ranks at once.

Counted in processor time, and then as much longer as backward takes than its own. Where ranks share cores, a call that
takes a fraction of a turn is seldom interrupted when timed by itself; in a step all ranks make theirs, and each waits
for the others'.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from thinwire.gradients import columns
from thinwire.gradients.algorithms import algorithm
from thinwire.gradients.costs import Affine, CodecCost
from thinwire.gradients.layout import SMALL
from thinwire.gradients.primitives import make_group
from thinwire.links import Door

# One group tells a group's cost, a longer one a value's. The model's own tensors, up to so many values of them, tell
# what a tensor costs: that depends on its length, and on the small ones beside it.
ONE, LONG, MOST_OWN = 1_024, 400_000, 4_000_000
BLOCKS, BLOCK_S, MOST_IN_BLOCK = 5, 0.02, 10
# In training a codec meets gradients that are in no cache: between two runs a rank reads so much else.
COLD_BYTES = 1 << 24


def clock_of(device: torch.device) -> Callable[[], float]:
    """This thread's processor time; on an accelerator, whose time that is not, the time that passes."""
    return time.thread_time if device.type == "cpu" else time.perf_counter


def codec_cost(spec: str, sizes: Sequence[int], share: float, door: Door, device: torch.device) -> CodecCost:
    """What the codec costs for tensors of these sizes; a rank takes `share` seconds for each on its processor."""
    first = _first(sizes)
    kinds = [_times(spec, shape, door, device) for shape in ([ONE], [LONG], first)]
    return CodecCost(*(_affine(first, *(share * seconds for seconds in times)) for times in zip(*kinds, strict=True)))


def _first(sizes: Sequence[int]) -> list[int]:
    """The first tensors, as many as MOST_OWN values hold, one at least."""
    first = [sizes[0]]
    for size in sizes[1:]:
        if sum(first) + size > MOST_OWN:
            break
        first.append(size)
    return first


def _times(spec: str, sizes: Sequence[int], door: Door, device: torch.device) -> list[float]:
    """Median seconds to encode, to add a payload, to decode."""
    chosen = algorithm(spec)
    names = [str(number) for number in range(len(sizes))]
    group = make_group(0, names, sizes, chosen, chosen.primitives[0], door, device=device)
    generator = torch.Generator(device).manual_seed(0)
    gradient = torch.randn(sum(sizes), generator=generator, device=device)
    total = torch.zeros_like(gradient)
    other = torch.zeros(COLD_BYTES, dtype=torch.uint8, device=device)

    def timed() -> list[float]:
        other.add_(1)
        return group.time_codec(gradient, total, clock_of(device))

    # As many on all ranks, by what the first few have taken.
    [once_s] = columns.medians(door, [[sum(timed())] for _ in range(3)])
    count = max(1, min(MOST_IN_BLOCK, int(BLOCK_S / max(once_s, 1e-6))))
    rows = []
    for _ in range(BLOCKS):
        door.barrier(channel=columns.CHANNEL)
        block = [timed() for _ in range(count)]
        rows.append([statistics.fmean(column) for column in zip(*block, strict=True)])
    return columns.medians(door, rows)


def _affine(own: Sequence[int], one_s: float, long_s: float, own_s: float) -> Affine:
    value_s = max(long_s - one_s, 0.0) / (LONG - ONE)
    group_s = max(one_s - ONE * value_s, 0.0)
    # Its own cost is one tensor's too.
    more = sum(size >= SMALL for size in own) - 1
    tensor_s = max(own_s - group_s - sum(own) * value_s, 0.0) / more if more > 0 else 0.0
    return Affine(max(group_s - tensor_s, 0.0), tensor_s, value_s)
