"""Gradients of shared weights: summed over ranks in every backward pass, by one fused all-reduce or by a few."""

import math
import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.variable import Variable
from torch.utils.hooks import RemovableHandle

from thinwire.links import Door, Transfer


class GradientSum:
    """Hooks that make `loss.backward()` leave the whole graph's gradients on every rank; then `after` is called.

    In several `groups`, the last layers' gradients travel while the first ones' are computed. That is for backward
    passes that wait for no other sums: those are matched by order, and a rank whose nodes reach fewer weights comes to
    its groups at other moments.
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
        self._before: dict[torch.nn.Parameter, Tensor | None] | None = None  # what was there when this pass began
        self._missing: set[torch.nn.Parameter] = set()
        self._under_way: list[Transfer[Tensor]] = []
        self.follow(parameters)

    def follow(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """From now on sum these; between two backward passes, the same ones on every rank. Frozen ones are left out."""
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
        for parameter in [each for each in self._hooks if each not in kept]:
            for hook in self._hooks.pop(parameter):
                hook.remove()
        for parameter in now:
            if parameter not in self._hooks:
                self._hooks[parameter] = [parameter.register_hook(self._begin)]
                if self._num_groups > 1:
                    self._hooks[parameter].append(parameter.register_post_accumulate_grad_hook(self._have))

    def _expect_alike(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """A sum over ranks that want different ones would be of no one's."""
        sizes = [len(parameters), sum(each.numel() for each in parameters)]
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
            # Set aside: it has been summed already, and several passes may add up before a step.
            self._before = {parameter: parameter.grad for parameter in self._parameters}
            for parameter in self._parameters:
                parameter.grad = None
            self._missing = set(self._parameters)
            Variable._execution_engine.queue_callback(self._finish)

    def _have(self, parameter: torch.nn.Parameter) -> None:
        self._missing.discard(parameter)
        # In one order on all ranks, whichever gradient is there first.
        while len(self._under_way) < len(self._groups) - 1 and not self._missing & {*self._next()}:
            self._post()

    def _next(self) -> list[torch.nn.Parameter]:
        return self._groups[len(self._under_way)]

    def _post(self) -> None:
        """The next group's sum. A weight that this rank's nodes do not reach has its place in it."""
        own = self._next()
        reached = [float(each.grad is not None) for each in own]
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in own]
        flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_tensor(reached)])
        self._under_way.append(self._door.all_reduce(flat, channel="gradients"))

    def _finish(self) -> None:
        while len(self._under_way) < len(self._groups):
            self._post()
        before, self._before = self._before or {}, None
        transfers, self._under_way = self._under_way, []
        for group, transfer in zip(self._groups, transfers, strict=True):
            *sums, reached_by = transfer.wait().split([*(each.numel() for each in group), len(group)])
            for parameter, total, count in zip(group, sums, reached_by.tolist(), strict=True):
                # One that nobody's nodes reach gets no gradient.
                new, old = total.view_as(parameter) if count else None, before[parameter]
                parameter.grad = new if old is None else old if new is None else old + new
        self._after()


def _cut(parameters: Sequence[torch.nn.Parameter], groups: int) -> list[list[torch.nn.Parameter]]:
    """In order, into at most so many groups of about equal size."""
    total = sum(each.numel() for each in parameters)
    found: list[list[torch.nn.Parameter]] = [[] for _ in range(groups)]
    seen = 0
    for each in parameters:
        found[min(groups - 1, seen * groups // max(1, total))].append(each)
        seen += each.numel()
    return [group for group in found if group]


def bytes_of(parameters: Iterable[torch.nn.Parameter], world_size: int) -> int:
    """What one such sum sends from each rank: a ring's two rounds, and whether each weight was reached."""
    sizes = [parameter.numel() for parameter in parameters if parameter.requires_grad]
    return math.ceil(2 * (world_size - 1) / world_size * 4 * (sum(sizes) + len(sizes)))
