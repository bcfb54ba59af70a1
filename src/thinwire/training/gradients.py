"""Gradients of shared weights, summed over ranks in every backward pass by one fused all-reduce or a few."""

import math
import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.variable import Variable
from torch.utils.hooks import RemovableHandle

from thinwire.links import Door, Transfer


class GradientSum:
    """Hooks by which `loss.backward()` leaves the whole graph's gradients on every rank. Then they call `after`.

    With several `groups`, gradients of the last layers travel while those of the first layers are computed. Use them
    only if the backward pass waits for no other sums: sums are matched by order, and a rank whose nodes reach fewer
    weights posts its groups at other moments.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        door: Door,
        after: Callable[[], None] = lambda: None,
        *,
        groups: int = 1,
    ) -> None:
        self._parameters: list[torch.nn.Parameter] = []
        self._groups: list[list[torch.nn.Parameter]] = []
        self._num_groups = groups
        self._hooks: dict[torch.nn.Parameter, list[RemovableHandle]] = {}
        self._door = door
        self._after = after
        self._before: dict[torch.nn.Parameter, Tensor | None] | None = None  # gradients from before this pass
        self._missing: set[torch.nn.Parameter] = set()
        self._under_way: list[Transfer[Tensor]] = []
        self.follow(parameters)

    def follow(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients of these parameters from now on; frozen ones are left out.

        Has an effect only between two backward passes. Give the same parameters on every rank.
        """
        now = [parameter for parameter in parameters if parameter.requires_grad]
        same = len(now) == len(self._parameters) and all(map(operator.is_, now, self._parameters))
        if same or self._before is not None:
            return
        if self._parameters:
            self._expect_alike(now)
        self._parameters, self._groups = now, _cut(now[::-1], self._num_groups)
        if self._door.world_size == 1:
            return
        kept = dict.fromkeys(now)
        for parameter in [parameter for parameter in self._hooks if parameter not in kept]:
            for hook in self._hooks.pop(parameter):
                hook.remove()
        for parameter in now:
            if parameter not in self._hooks:
                self._hooks[parameter] = [parameter.register_hook(self._begin)]
                if self._num_groups > 1:
                    self._hooks[parameter].append(parameter.register_post_accumulate_grad_hook(self._have))

    def _expect_alike(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Raise if ranks want gradients of different weights: their sum would mix different weights."""
        sizes = [len(parameters), sum(parameter.numel() for parameter in parameters)]
        gathered = self._door.gather(
            torch.tensor(sizes, device=parameters[0].device if parameters else None), channel="weights"
        )
        if bool((gathered != gathered[0]).any()):
            counts = ", ".join(
                f"rank {rank} {count} of {size} values" for rank, (count, size) in enumerate(gathered.tolist())
            )
            raise ValueError(f"ranks want gradients of different weights: {counts}; freeze and unfreeze alike on all")

    def _begin(self, gradient: Tensor) -> None:
        if self._before is None:
            # Earlier gradients are set aside: they are summed already, and several passes may add up before a step.
            self._before = {parameter: parameter.grad for parameter in self._parameters}
            for parameter in self._parameters:
                parameter.grad = None
            self._missing = set(self._parameters)
            Variable._execution_engine.queue_callback(self._finish)

    def _have(self, parameter: torch.nn.Parameter) -> None:
        self._missing.discard(parameter)
        # Groups go in the same order on all ranks, whichever gradient is ready first.
        while len(self._under_way) < len(self._groups) - 1 and not self._missing & {*self._next()}:
            self._post()

    def _next(self) -> list[torch.nn.Parameter]:
        return self._groups[len(self._under_way)]

    def _post(self) -> None:
        """Start the next group's sum. A weight that this rank's nodes do not reach counts as zeros."""
        group = self._next()
        reached = [float(parameter.grad is not None) for parameter in group]
        parts = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in group]
        flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_tensor(reached)])
        self._under_way.append(self._door.all_reduce(flat, channel="gradients"))

    def _finish(self) -> None:
        while len(self._under_way) < len(self._groups):
            self._post()
        before, self._before = self._before or {}, None
        transfers, self._under_way = self._under_way, []
        for group, transfer in zip(self._groups, transfers, strict=True):
            *sums, reached_by = transfer.wait().split([*(parameter.numel() for parameter in group), len(group)])
            for parameter, total, count in zip(group, sums, reached_by.tolist(), strict=True):
                # A weight that no rank's nodes reach gets no gradient.
                new, old = total.view_as(parameter) if count else None, before[parameter]
                parameter.grad = new if old is None else old if new is None else old + new
        self._after()


def _cut(parameters: Sequence[torch.nn.Parameter], groups: int) -> list[list[torch.nn.Parameter]]:
    """Split the parameters, in order, into at most `groups` groups of about equal size."""
    total = sum(parameter.numel() for parameter in parameters)
    split: list[list[torch.nn.Parameter]] = [[] for _ in range(groups)]
    seen = 0
    for parameter in parameters:
        split[min(groups - 1, seen * groups // max(1, total))].append(parameter)
        seen += parameter.numel()
    return [group for group in split if group]


def bytes_of(parameters: Iterable[torch.nn.Parameter], world_size: int) -> int:
    """Bytes that each rank sends for one sum: two rounds of a ring, with a flag for each weight that was reached."""
    sizes = [parameter.numel() for parameter in parameters if parameter.requires_grad]
    return math.ceil(2 * (world_size - 1) / world_size * 4 * (sum(sizes) + len(sizes)))
