r"""What a lossy codec costs in progress: what was applied beside the true mean gradient, over windows of steps.

S is the sum of true mean gradients in a window, D that of what was applied instead. With c their cosine and r the ratio
of their norms, a step along D makes

    share = 2 c r - r^2 = 1 - |S - D|^2 / |S|^2

of the progress of one along S: the descent lemma at the largest step size that surely descends, 1 / smoothness. Error
feedback is counted in: S - D is what memory has gained in the window, and what a codec holds back and sends a few steps
later is in both sums.

Measured on values drawn anew for each window, so few that the sum of S over ranks is at most SHARE of all bytes. Half
are drawn among all values and half among tensors, since small ones may have much of the norm; each weighs accordingly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs import seed_from
from thinwire.gradients.group import Group
from thinwire.links import Door

# Steps of a window. In fewer a good codec's delays weigh too much, in more a bad one's too little: so many predicted
# best how much was learnt (decision 18).
WINDOW = 25
SHARE = 0.01
FEWEST, MOST = 512, 16_384  # values drawn
CHANNEL = "gradients.progress"


@dataclass(frozen=True)
class Progress:
    """How far codecs have come in the `steps` that ended with `step`."""

    step: int
    steps: int
    cosine: float
    norm_ratio: float

    @property
    def share(self) -> float:
        """The share of what uncompressed gradients would have achieved; negative where it went the other way."""
        return 2 * self.cosine * self.norm_ratio - self.norm_ratio**2


def bytes_of(num_values: int, world_size: int) -> float:
    """That a rank sends to sum so many values over ranks, and to agree on what follows."""
    return 8 * num_values * (world_size - 1) / world_size + 24 * (world_size - 1)


class Watch:
    """Keeps both sums on this rank; all ranks close their windows in the same step, with the same numbers."""

    def __init__(self, door: Door, seed: int, window: int = WINDOW) -> None:
        self._door, self._seed, self._window = door, seed, window
        self._steps, self._number = 0, 0
        self._weights = torch.empty(0)
        self._places: dict[int, Tensor] = {}  # by group
        self._came: dict[int, Tensor] = {}
        self._applied: dict[int, Tensor] = {}
        self._now: dict[int, Tensor] = {}
        self.steps = window  # of this window

    def came(self, group: Group, gradient: Tensor, scale: float) -> None:
        """Note this rank's gradient, before it is sent."""
        if group.number in self._places:
            self._now[group.number] = gradient[self._places[group.number]].float() / scale

    def applied(self, group: Group, mean: Tensor, scale: float) -> None:
        """Note what all ranks apply in the same step, once it counts."""
        number = group.number
        if number in self._now:
            self._came[number] += self._now.pop(number)
            self._applied[number] += mean[self._places[number]].float() / scale

    def step_over(self, step: int, groups: Sequence[Group]) -> Progress | None:
        """At the end of a window what it has shown; None before."""
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
        # The first rank's: processors of several kinds may differ in the last digit.
        true, sent, both = self._door.gather(sums_here, channel=CHANNEL)[0].tolist()
        progress = Progress(
            step, self._steps, both / max(math.sqrt(true * sent), 1e-300), math.sqrt(sent / max(true, 1e-300))
        )
        self._open(groups)
        return progress

    def _open(self, groups: Sequence[Group]) -> None:
        """Draw values, and begin anew."""
        n, self._steps, self._number = self._door.world_size, 0, self._number + 1
        sizes = torch.tensor([size for group in groups for size in group.sizes])
        budget = SHARE * sum(group.sent_bytes for group in groups)  # of a step
        most = (budget * self._window - 24 * (n - 1)) * n / (8 * (n - 1)) if n > 1 else MOST
        count = int(min(max(most, FEWEST), MOST, int(sizes.sum())))
        self.steps = self._window if n == 1 else max(self._window, math.ceil(bytes_of(count, n) / max(budget, 1e-9)))
        places, weights = drawn(sizes, count, seed_from(self._seed, self._number))
        device = groups[0].device
        self._weights = weights.to(device)
        lengths = torch.tensor([sum(group.sizes) for group in groups])
        begins = lengths.cumsum(0) - lengths
        owner = torch.searchsorted(lengths.cumsum(0), places, right=True)
        for at, group in enumerate(groups):
            self._places[group.number] = (places[owner == at] - begins[at]).to(device)
            self._came[group.number] = torch.zeros(len(self._places[group.number]), device=device)
            self._applied[group.number] = torch.zeros_like(self._came[group.number])


def drawn(sizes: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Places in tensors of these sizes, one after the other, in order; and what each stands for. All, if so many."""
    ends, total = sizes.cumsum(0), int(sizes.sum())
    if count >= total:
        return torch.arange(total), torch.ones(total, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    evenly = torch.randint(total, (count - count // 2,), generator=generator)
    tensors = torch.randint(len(sizes), (count // 2,), generator=generator)
    within = (torch.rand(count // 2, generator=generator, dtype=torch.float64) * sizes[tensors]).long()
    places = torch.cat([evenly, (ends - sizes)[tensors] + within]).sort().values
    own = sizes[torch.searchsorted(ends, places, right=True)].double()
    return places, 1 / (count * (0.5 / total + 0.5 / (len(sizes) * own)))
