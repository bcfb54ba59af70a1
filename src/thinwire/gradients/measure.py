"""What a codec costs a rank: groups are encoded, added up and decoded without being sent, on all ranks at once.

Processor time is measured, and multiplied by the ratio of backward's time to its processor time. Where ranks share
cores, a short call is seldom interrupted when it is timed alone. In a step all ranks make their calls at about the same
time, and wait for each other.
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
from thinwire.gradients.sharing import CodecSeconds
from thinwire.links import Door

# A short tensor tells what a group costs, a long one what a value costs. The model's own tensors, up to MOST_OWN
# values, tell what a tensor costs: this depends on its length, and on the small tensors beside it.
ONE, LONG, MOST_OWN = 1_024, 400_000, 4_000_000
BLOCKS, BLOCK_S, MOST_IN_BLOCK = 5, 0.02, 10
GLANCES = 3
# In training no cache holds the gradients that a codec reads. So before each run this much other memory is touched.
COLD_BYTES = 1 << 24


def clock_of(device: torch.device) -> Callable[[], float]:
    """This thread's processor time; on an accelerator wall-clock time, since the work is not the thread's."""
    return time.thread_time if device.type == "cpu" else time.perf_counter


def codec_cost(spec: str, sizes: Sequence[int], share: float, door: Door, device: torch.device) -> CodecCost:
    """What the codec costs for tensors of these sizes. `share` seconds pass for each of processor time."""
    first = _first(sizes)
    kinds = [_times(spec, shape, door, device) for shape in ([ONE], [LONG], first)]
    return CodecCost(*(_affine(first, *(share * seconds for seconds in times)) for times in zip(*kinds, strict=True)))


def value_seconds(
    specs: Sequence[str], sizes: Sequence[int], door: Door, device: torch.device
) -> dict[str, CodecSeconds]:
    """What each codec costs for each value of tensors of these sizes, at a glance: some milliseconds a codec."""
    first = _first(sizes)
    gradient = torch.randn(sum(first), generator=torch.Generator(device).manual_seed(0), device=device)
    total = torch.zeros_like(gradient)
    rows = []
    for _ in range(GLANCES):
        row: list[float] = []
        for spec in specs:
            chosen = algorithm(spec)
            names = [str(number) for number in range(len(first))]
            group = make_group(0, names, first, chosen, chosen.primitives[0], door, device=device)
            row += group.time_codec(gradient, total, clock_of(device))
        rows.append(row)
    each = [seconds / max(1, sum(first)) for seconds in columns.medians(door, rows)]
    return {spec: CodecSeconds(*each[3 * number : 3 * number + 3]) for number, spec in enumerate(specs)}


def _first(sizes: Sequence[int]) -> list[int]:
    """The first tensors with at most MOST_OWN values together, at least one."""
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

    # The number of runs in a block, the same on all ranks, from the time of the first few.
    [once_s] = columns.medians(door, [[sum(timed())] for _ in range(3)])
    count = max(1, min(MOST_IN_BLOCK, int(BLOCK_S / max(once_s, 1e-6))))
    rows = []
    for _ in range(BLOCKS):
        door.barrier(channel=columns.CHANNEL)
        block = [timed() for _ in range(count)]
        rows.append([statistics.fmean(column) for column in zip(*block, strict=True)])
    return columns.medians(door, rows)


def _affine(sizes: Sequence[int], short_s: float, long_s: float, model_s: float) -> Affine:
    """The costs that explain three times: of a short tensor, of a long one, and of the model's tensors."""
    value_s = max(long_s - short_s, 0.0) / (LONG - ONE)
    group_s = max(short_s - ONE * value_s, 0.0)
    # The measured cost of a group includes that of one tensor.
    num_others = sum(size >= SMALL for size in sizes) - 1
    tensor_s = max(model_s - group_s - sum(sizes) * value_s, 0.0) / num_others if num_others > 0 else 0.0
    return Affine(max(group_s - tensor_s, 0.0), tensor_s, value_s)
