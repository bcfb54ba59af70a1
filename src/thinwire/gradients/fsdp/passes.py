"""A backward pass counts as a whole: memory changes only if all gradients of all units are finite on all ranks."""

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch.autograd.variable import Variable

OUTSIDE = -1


class Pending(Protocol):
    """The memory that a unit has prepared in the current pass: kept by `commit`, or dropped."""

    def commit(self) -> None: ...
    def drop(self) -> None: ...


class Passes:
    """The backward passes of one model. `skipped` counts those in which some rank's gradient was not finite.

    Ranks that exchange payloads see each other's flags. `beside` are the groups along the other dimensions of the mesh,
    whose ranks exchange one number in each pass; with float16, along all dimensions.
    """

    def __init__(self, beside: Sequence[dist.ProcessGroup], device: torch.device, done: Callable[[], None]) -> None:
        self._beside, self._device, self._done = beside, device, done
        self._under_route = OUTSIDE  # autograd's number of the current pass
        self._pending: list[Pending] = []
        self._fine = True
        self.skipped = 0

    def take(self, pending: Pending, *, fine: bool) -> None:
        """Note a unit that is reduced. After the backward pass its memory counts, if all gradients were finite."""
        current = torch._C._current_graph_task_id()
        if current != self._under_route:
            self._drop()  # left over from a pass that an error ended
            self._under_route = current
            if current != OUTSIDE:
                Variable._execution_engine.queue_callback(self._over)
        self._pending.append(pending)
        self._fine = self._fine and fine
        if current == OUTSIDE:
            self._over()

    def _over(self) -> None:
        if self._agreed():
            for pending in self._pending:
                pending.commit()
        else:
            self.skipped += 1
            warnings.warn(
                f"rank {dist.get_rank()}: some rank's gradient was not finite: the units it is in are NaN on all ranks "
                "that share them, and what the codecs remember is as it was before this backward pass",
                RuntimeWarning,
                stacklevel=2,
            )
        self._drop()
        self._under_route = OUTSIDE
        self._done()

    def _agreed(self) -> bool:
        """Whether all gradients were finite on all ranks."""
        for group in self._beside:
            fine_everywhere = torch.tensor([float(self._fine)], device=self._device)
            dist.all_reduce(fine_everywhere, dist.ReduceOp.MIN, group=group)
            self._fine = bool(fine_everywhere.item())
        return self._fine

    def _drop(self) -> None:
        for pending in self._pending:
            pending.drop()
        self._pending, self._fine = [], True
