"""How groups of gradients are summed over ranks: in float32, or by a codec that remembers what it lost (`gradients/`).

Both send a group when it is posted, and give all sums at the end: the same bits on every rank, and None for a parameter
that no rank's nodes reach.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from thinwire.gradients.algorithms import ALL_REDUCE, DENSE, NONE, Algorithm, algorithm
from thinwire.gradients.group import Group
from thinwire.gradients.memory import State
from thinwire.gradients.primitives import make_group
from thinwire.gradients.progress import Watch
from thinwire.gradients.sent import flag_bytes, float32_bytes, primitive_of
from thinwire.gradients.two_step import TwoStep
from thinwire.links import Door, Transfer
from thinwire.training.finite import NotFinite

CHANNEL = "gradients"
REACHED = "gradients.reached"
Named = tuple[str, nn.Parameter]


class Sums(ABC):
    """The groups of one backward pass after another."""

    @abstractmethod
    def post(self, number: int) -> None:
        """Send the gradients of this group. A parameter that this rank's nodes do not reach counts as zeros."""

    @abstractmethod
    def finish(self) -> list[tuple[nn.Parameter, Tensor | None]]:
        """Each parameter with its sum, once all groups are posted."""


class Float32(Sums):
    """One all-reduce a group, with a value behind each group's own that counts the ranks that reach a parameter."""

    def __init__(self, groups: Sequence[Sequence[Named]], door: Door) -> None:
        self._groups, self._door = [[parameter for _, parameter in group] for group in groups], door
        self._under_way: list[Transfer[Tensor]] = []

    def post(self, number: int) -> None:
        group = self._groups[number]
        reached = [float(parameter.grad is not None) for parameter in group]
        parts = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in group]
        flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_tensor(reached)])
        self._under_way.append(self._door.all_reduce(flat, channel=CHANNEL))

    def finish(self) -> list[tuple[nn.Parameter, Tensor | None]]:
        transfers, self._under_way = self._under_way, []
        sums: list[tuple[nn.Parameter, Tensor | None]] = []
        for group, transfer in zip(self._groups, transfers, strict=True):
            *totals, reached_by = transfer.wait().split([*(parameter.numel() for parameter in group), len(group)])
            for parameter, total, count in zip(group, totals, reached_by.tolist(), strict=True):
                sums.append((parameter, total.view_as(parameter) if count else None))
        return sums


class Coded(Sums):
    """A group of `gradients/` for each group, and one gather of flags, a bit for each parameter, for all of them.

    Where a rank's gradients are not finite, no memory changes and all ranks raise NotFinite, which says the `place` in
    the run. `watch` compares what comes with what is applied. `step` makes seeds.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Named]],
        door: Door,
        codec: str,
        *,
        seed: int,
        step: int,
        state: Mapping[str, Mapping[str, Tensor]],
        place: Callable[[], str],
        watch: Watch | None = None,
    ) -> None:
        self.codec, self.step, self.watch, self._door, self._place = codec, step, watch, door, place
        chosen = algorithm(codec)
        self._parameters = [[parameter for _, parameter in group] for group in groups]
        self.groups: list[Group] = [
            make_group(
                number,
                [name for name, _ in group],
                [parameter.numel() for _, parameter in group],
                chosen,
                _primitive(chosen, [parameter.numel() for _, parameter in group], door.world_size),
                door,
                device=group[0][1].device,
                seed=seed,
                state=state,
            )
            for number, group in enumerate(groups)
        ]
        self._buffers: list[Tensor] = []
        self._flags: list[bool] = []
        self._is_fine = True

    def state(self) -> State:
        """What all groups remember, by kind and parameter."""
        state: State = {}
        for group in self.groups:
            for kind, tensors in group.state().items():
                state.setdefault(kind, {}).update(tensors)
        return state

    def post(self, number: int) -> None:
        group, parameters = self.groups[number], self._parameters[number]
        gradients = [parameter.grad for parameter in parameters]
        buffer = torch.cat(
            [
                (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1).float()
                for parameter, gradient in zip(parameters, gradients, strict=True)
            ]
        )
        self._flags += [gradient is not None for gradient in gradients]
        self._is_fine = self._is_fine and bool(buffer.isfinite().all())
        channel, books = f"{CHANNEL}.{number}", self._door.books
        if self.watch is not None:
            self.watch.came(group, buffer, 1.0)
        with books.coding(channel):
            group.post(buffer, self.step)
        books.replaces(channel, float32_bytes(group.sizes, self._door.world_size))
        self._buffers.append(buffer)

    def finish(self) -> list[tuple[nn.Parameter, Tensor | None]]:
        buffers, self._buffers = self._buffers, []
        reached, broken = self._gather_flags()
        fine = True
        for group, buffer in zip(self.groups, buffers, strict=True):
            group.wait()
            with self._door.books.coding(f"{CHANNEL}.{group.number}"):
                fine = group.finish(buffer) and fine
            if isinstance(group, TwoStep):
                self._door.books.replaces(f"{CHANNEL}.{group.number}.second", 0)
        self._door.books.replaces(REACHED, 0)
        # A step counts for all groups or for none: a group that counted alone would lose what it has sent.
        if broken or not fine:
            raise NotFinite(self._complaint(broken))
        sums: list[tuple[nn.Parameter, Tensor | None]] = []
        flags = iter(reached)
        for group, parameters, buffer in zip(self.groups, self._parameters, buffers, strict=True):
            for number, (parameter, part) in enumerate(zip(parameters, buffer.split(list(group.sizes)), strict=True)):
                is_reached = next(flags)
                if not is_reached:
                    group.keep(number)
                    part.zero_()
                sums.append((parameter, part.view_as(parameter).to(parameter.dtype) if is_reached else None))
            group.commit()
            if self.watch is not None:
                self.watch.applied(group, buffer, 1.0)
        for _, total in sums:
            if total is not None:
                total.mul_(self._door.world_size)  # groups give the mean
        self.step += 1
        return sums

    def _gather_flags(self) -> tuple[list[bool], list[int]]:
        """For each parameter whether some rank reached it, and the ranks whose gradients are not finite."""
        bits = [not self._is_fine, *self._flags]
        self._flags, self._is_fine = [], True
        size = flag_bytes(len(bits) - 1)
        packed = sum(int(bit) << place for place, bit in enumerate(bits)).to_bytes(size, "little")
        mine = torch.tensor(list(packed), dtype=torch.uint8, device=self.groups[0].device)
        parts = self._door.all_gather(mine, [size] * self._door.world_size, channel=REACHED).wait()
        flags_by_rank = [int.from_bytes(bytes(part.tolist()), "little") for part in parts]
        by_any = 0
        for flags in flags_by_rank:
            by_any |= flags
        reached = [bool(by_any >> place & 1) for place in range(1, len(bits))]
        return reached, [rank for rank, flags in enumerate(flags_by_rank) if flags & 1]

    def _complaint(self, broken: Sequence[int]) -> str:
        door = self._door
        ranks = ", ".join(str(door.ranks[rank]) for rank in broken)
        whose = f"of rank {ranks} have" if broken else f"summed over ranks have values that {self.codec} can't hold,"
        return (
            f"weights' gradients {whose} infinity or NaN in {self._place()}. No memory was changed. Training has "
            "diverged: try a lower learning rate"
        )


def _primitive(chosen: Algorithm, sizes: Sequence[int], world_size: int) -> str:
    return ALL_REDUCE if chosen.spec in (NONE, *DENSE) else primitive_of(chosen, sizes, world_size)
