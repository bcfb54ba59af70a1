r"""What a lossy codec costs in progress: applied gradients compared with true mean gradients, over windows of steps.

S is the sum of the true mean gradients in a window, D the sum of the gradients applied instead. With c their cosine and
r the norm of D over that of S, a step along D makes

    share = 2 c r - r^2 = 1 - |S - D|^2 / |S|^2

of the progress of a step along S. This is the descent lemma at the largest step size that surely descends,
1 / smoothness. Error feedback counts: S - D is what memory has gained in the window, and a value that a codec holds
back and sends a few steps later is in both sums.

Measured on a sample of values, drawn anew for each window and so small that summing it over ranks takes at most SHARE
of all bytes. Half of the sample is drawn evenly among values. The other half is drawn evenly among tensors, since small
tensors may hold much of the norm. Each value weighs as much as it was unlikely to be drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs import seed_from
from thinwire.gradients.group import Group
from thinwire.links import Door

# Steps of a window. In a shorter window a good codec's delays weigh too much, in a longer one a bad codec's too little.
# This length predicted best how much was learnt (decision 18).
WINDOW = 25
SHARE = 0.01
FEWEST, MOST = 512, 16_384  # values in a sample
CHANNEL = "gradients.progress"


@dataclass(frozen=True)
class Progress:
    """What codecs have achieved in the `steps` steps that ended with `step`."""

    step: int
    steps: int
    cosine: float
    norm_ratio: float

    @property
    def share(self) -> float:
        """The share of the progress that uncompressed gradients would have made; negative where the loss would rise."""
        return 2 * self.cosine * self.norm_ratio - self.norm_ratio**2


def bytes_of(num_values: int, world_size: int) -> float:
    """What a rank sends to sum `num_values` over ranks, and to agree on the result."""
    return 8 * num_values * (world_size - 1) / world_size + 24 * (world_size - 1)


class Watch:
    """Keeps both sums of a window on this rank. All ranks end a window in the same step, with the same result."""

    def __init__(self, door: Door, seed: int, window: int = WINDOW) -> None:
        self._door, self._seed, self._window = door, seed, window
        self._steps, self._number = 0, 0
        self._weights = torch.empty(0)
        # By the group's number: the sampled places in it, and the two sums there; then this step's gradient.
        self._places: dict[int, Tensor] = {}
        self._came: dict[int, Tensor] = {}
        self._applied: dict[int, Tensor] = {}
        self._now: dict[int, Tensor] = {}
        self.steps = window  # length of the current window

    def came(self, group: Group, gradient: Tensor, scale: float) -> None:
        """Note this rank's gradient, before it is sent."""
        if group.number in self._places:
            self._now[group.number] = gradient[self._places[group.number]].float() / scale

    def applied(self, group: Group, mean: Tensor, scale: float) -> None:
        """Note the mean that all ranks apply in this step, once the step counts."""
        number = group.number
        if number in self._now:
            self._came[number] += self._now.pop(number)
            self._applied[number] += mean[self._places[number]].float() / scale

    def step_over(self, step: int, groups: Sequence[Group]) -> Progress | None:
        """The result of a window at its end; None before."""
        if not self._places:
            self._open(groups)
            return None
        self._steps += 1
        if self._steps < self.steps:
            return None
        sums = torch.cat([*self._came.values()])
        sums = self._door.all_reduce(sums, channel=CHANNEL).wait().double() / self._door.world_size
        applied = torch.cat([*self._applied.values()]).double()
        weighed, weighed_applied = self._weights * sums, self._weights * applied
        sums_here = torch.stack([weighed @ sums, weighed_applied @ applied, weighed @ applied])
        # All use the first rank's numbers: different processors may differ in the last digit.
        true, sent, product = self._door.gather(sums_here, channel=CHANNEL)[0].tolist()
        progress = Progress(
            step, self._steps, product / max(math.sqrt(true * sent), 1e-300), math.sqrt(sent / max(true, 1e-300))
        )
        self._open(groups)
        return progress

    def state(self) -> tuple[dict[str, int], dict[str, Tensor]]:
        """For a checkpoint: where this window is, and its sums."""
        sums = {"came": self._came, "applied": self._applied}
        tensors = {
            f"{kind}.{number}": kept.clone() for kind, by_group in sums.items() for number, kept in by_group.items()
        }
        return {"number": self._number, "steps": self._steps}, tensors

    def restore(self, facts: Mapping[str, int], tensors: Mapping[str, Tensor], groups: Sequence[Group]) -> None:
        """Go on within the window that `state` has told of, with the same groups."""
        if not facts["number"]:
            return
        self._number = facts["number"] - 1
        self._open(groups)
        self._steps = facts["steps"]
        for kind, by_group in (("came", self._came), ("applied", self._applied)):
            for number in by_group:
                by_group[number].copy_(tensors[f"{kind}.{number}"])

    def _open(self, groups: Sequence[Group]) -> None:
        """Draw a new sample and begin a new window."""
        n, self._steps, self._number = self._door.world_size, 0, self._number + 1
        sizes = torch.tensor([size for group in groups for size in group.sizes])
        budget = SHARE * sum(group.sent_bytes for group in groups)  # bytes in a step
        most = (budget * self._window - 24 * (n - 1)) * n / (8 * (n - 1)) if n > 1 else MOST
        count = int(min(max(most, FEWEST), MOST, int(sizes.sum())))
        self.steps = self._window if n == 1 else max(self._window, math.ceil(bytes_of(count, n) / max(budget, 1e-9)))
        places, weights = drawn(sizes, count, seed_from(self._seed, self._number))
        device = groups[0].device
        self._weights = weights.to(device)
        lengths = torch.tensor([sum(group.sizes) for group in groups])
        begins = lengths.cumsum(0) - lengths
        owner = torch.searchsorted(lengths.cumsum(0), places, right=True)
        for index, group in enumerate(groups):
            self._places[group.number] = (places[owner == index] - begins[index]).to(device)
            self._came[group.number] = torch.zeros(len(self._places[group.number]), device=device)
            self._applied[group.number] = torch.zeros_like(self._came[group.number])


def drawn(sizes: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sampled places in the concatenation of tensors of these sizes, in order, and the weight of each.

    All places if `count` reaches their number.
    """
    ends, total = sizes.cumsum(0), int(sizes.sum())
    if count >= total:
        return torch.arange(total), torch.ones(total, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    evenly = torch.randint(total, (count - count // 2,), generator=generator)
    tensors = torch.randint(len(sizes), (count // 2,), generator=generator)
    within = (torch.rand(count // 2, generator=generator, dtype=torch.float64) * sizes[tensors]).long()
    places = torch.cat([evenly, (ends - sizes)[tensors] + within]).sort().values
    sizes_there = sizes[torch.searchsorted(ends, places, right=True)].double()
    return places, 1 / (count * (0.5 / total + 0.5 / (len(sizes) * sizes_there)))
