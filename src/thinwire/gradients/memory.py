"""What a group remembers from step to step, by parameter's name: what its codec lost, or DGC's momentum.

A step's new memory counts once the gradients of all ranks proved finite (`commit`). Otherwise the old memory stays.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire.gradients.algorithms import MASKED, MOMENTUM, RESIDUAL
from thinwire.gradients.layout import SMALL

# What the owners of slices have yet to deliver (two-step).
OWED = "owed"
# float32 tensors by kind (residual, momentum, owed) and by parameter's name.
State = dict[str, dict[str, Tensor]]


class Memory:
    """No memory: the gradient is sent as it is, and what the codec loses is lost."""

    def compensate(self, gradient: Tensor) -> Tensor:
        """What to send instead of this gradient: the gradient plus what is remembered."""
        return gradient

    def sent(self, add: Callable[[Tensor], object]) -> None:
        """Note what was sent: `add(x)` adds it to x."""

    def keep(self, part: slice) -> None:
        """No rank has used what was sent for this part, so its memory stays as it was. To be called before `commit`."""

    def commit(self) -> None:
        """The step counts: its memory replaces the old one."""

    def tensors(self) -> dict[str, Tensor]:
        """What is remembered, by kind."""
        return {}


class Residual(Memory):
    """Error feedback (arXiv 1901.09847): p = g + m goes out, m = p - decoded stays. No decay.

    Kept as -m, so that a codec can add what it sent. A sparse codec does that without touching the other values.
    """

    def __init__(self, residual: Tensor) -> None:
        self._kept = residual.neg()
        self._next = torch.empty_like(residual)

    def compensate(self, gradient: Tensor) -> Tensor:
        return torch.sub(gradient, self._kept, out=self._next)

    def sent(self, add: Callable[[Tensor], object]) -> None:
        add(self._next.neg_())

    def keep(self, part: slice) -> None:
        self._next[part] = self._kept[part]

    def commit(self) -> None:
        self._kept, self._next = self._next, self._kept

    def tensors(self) -> dict[str, Tensor]:
        return {RESIDUAL: self._kept.neg()}


class Debt(Memory):
    """What a former codec left in memory. All of it is sent with the next gradient, by a codec without memory."""

    def __init__(self, owed: Tensor) -> None:
        self._kept: Tensor | None = owed
        self._next: Tensor | None = None

    def compensate(self, gradient: Tensor) -> Tensor:
        self._next = None
        return gradient if self._kept is None else gradient + self._kept

    def keep(self, part: slice) -> None:
        if self._kept is not None:
            if self._next is None:
                self._next = torch.zeros_like(self._kept)
            self._next[part] = self._kept[part]

    def commit(self) -> None:
        self._kept, self._next = self._next, None

    def tensors(self) -> dict[str, Tensor]:
        return {} if self._kept is None else {RESIDUAL: self._kept}


class Momentum(Memory):
    """Deep Gradient Compression (arXiv 1712.01887): u = mu u + g, v = v + u; v is sent, and becomes zero where it was.

    So u is the momentum of training without compression. `masked` says where u, too, becomes zero when v is sent, as
    published.
    """

    def __init__(self, velocity: Tensor, residual: Tensor, momentum: float, masked: Tensor | None = None) -> None:
        self._kept = (velocity, residual)
        self._masked = masked
        self._next = (torch.empty_like(velocity), torch.empty_like(residual))
        self._momentum = momentum

    def compensate(self, gradient: Tensor) -> Tensor:
        torch.add(gradient, self._kept[0], alpha=self._momentum, out=self._next[0])
        return torch.add(self._kept[1], self._next[0], out=self._next[1])

    def sent(self, add: Callable[[Tensor], object]) -> None:
        sent = torch.zeros_like(self._next[0])
        add(sent)
        was_sent = sent != 0
        self._next[1].masked_fill_(was_sent, 0.0)
        if self._masked is not None:
            self._next[0].masked_fill_(was_sent & self._masked, 0.0)

    def keep(self, part: slice) -> None:
        for new, old in zip(self._next, self._kept, strict=True):
            new[part] = old[part]

    def commit(self) -> None:
        self._kept, self._next = self._next, self._kept

    def tensors(self) -> dict[str, Tensor]:
        return {MOMENTUM: self._kept[0], RESIDUAL: self._kept[1]}


class SliceDebt:
    """What the second encoding of a two-step exchange lost of this rank's slice. It is sent with the next sum."""

    def __init__(self, place: slice) -> None:
        """`place`: where the slice lies in the group's values."""
        self._place = place
        self._kept: Tensor | None = None
        self._next: Tensor | None = None

    def take_from(self, owed: Tensor) -> None:
        """Move this slice's part out of `owed`, which holds what all of the group's slices owe."""
        self._kept = owed[self._place].clone()
        owed[self._place] = 0.0

    def compensate(self, total: Tensor) -> None:
        if self._kept is not None:
            total += self._kept

    def forget(self) -> None:
        """Forget what was noted in a step that did not count: a new step begins."""
        self._next = None

    def remember(self, lost: Tensor) -> None:
        self._next = lost

    def keep(self, part: slice) -> None:
        """As `Memory.keep`; `part` counts the group's values."""
        low, high = max(part.start, self._place.start), min(part.stop, self._place.stop)
        if self._next is not None and low < high:
            here = slice(low - self._place.start, high - self._place.start)
            self._next[here] = 0.0 if self._kept is None else self._kept[here]

    def commit(self) -> None:
        if self._next is not None:
            self._kept, self._next = self._next, None

    def whole(self, size: int) -> Tensor | None:
        """The slice's debt in its place among the group's `size` values, zeros elsewhere; None where there is none."""
        if self._kept is None:
            return None
        whole = self._kept.new_zeros(size)
        whole[self._place] = self._kept
        return whole


def memory_for(
    kind: str,
    names: Sequence[str],
    sizes: Sequence[int],
    state: Mapping[str, Mapping[str, Tensor]],
    momentum: float,
    device: torch.device,
    owed: Tensor | None = None,
) -> Memory:
    """A group's memory, filled with what `state` holds of its parameters; other parameters start from zero.

    `owed` is added to the residual.
    """

    def fill(tensor_kind: str) -> Tensor:
        kept = flat_of(state.get(tensor_kind, {}), names, sizes, device)
        return kept + owed if tensor_kind == RESIDUAL and owed is not None and owed.any() else kept

    if kind == RESIDUAL:
        return Residual(fill(RESIDUAL))
    if kind == MOMENTUM:
        return Momentum(fill(MOMENTUM), fill(RESIDUAL), momentum)
    if kind == MASKED:
        # Not for small tensors: all of their values are always sent, so they would never have any momentum.
        masked = torch.cat([torch.full((size,), size >= SMALL, dtype=torch.bool, device=device) for size in sizes])
        return Momentum(fill(MOMENTUM), fill(RESIDUAL), momentum, masked)
    if any(name in state.get(tensor_kind, {}) for tensor_kind in (RESIDUAL, OWED) for name in names):
        return Debt(fill(RESIDUAL))
    return Memory()


def flat_of(
    remembered: Mapping[str, Tensor], names: Sequence[str], sizes: Sequence[int], device: torch.device
) -> Tensor:
    """What is remembered of these parameters, concatenated; zeros where there is nothing."""
    kept = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
    for name, part in zip(names, kept.split(list(sizes)), strict=True):
        if name in remembered:
            part.copy_(remembered[name].reshape(-1))
    return kept


def by_name(tensors: Mapping[str, Tensor], names: Sequence[str], sizes: Sequence[int]) -> State:
    """Flat tensors cut by parameter. The parts are copies, ready for safetensors."""
    return {
        kind: {name: part.clone() for name, part in zip(names, kept.split(list(sizes)), strict=True)}
        for kind, kept in tensors.items()
    }


def mean_of(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The memory for another number of ranks: each new rank gets the mean of the old ranks' memories.

    Training is owed (1/n) sum of m over the n old ranks. Each new rank's m is that mean, and so is the mean over the
    new ranks: nothing is lost. What the owners of slices owe in a two-step exchange is part of that sum and is added.
    """
    if not states or any(set(state) != set(states[0]) for state in states):
        raise ValueError("mean_of: give every old rank's state_dict, all of one model and plan")
    means = {"steps": states[0]["steps"]}  # the same on all ranks
    for key in states[0]:
        kind, _, name = key.partition("/")
        if name and kind != OWED:
            kept = [state[key] for state in states]
            owed = (
                [state[f"{OWED}/{name}"] for state in states]
                if kind == RESIDUAL and f"{OWED}/{name}" in states[0]
                else []
            )
            means[key] = torch.stack([*kept, *owed]).sum(dim=0) / len(states)
    return means
