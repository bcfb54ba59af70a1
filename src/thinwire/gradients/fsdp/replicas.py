"""HSDP's all-reduce between replicas, by the codec. Torch's own reduce-scatter within a replica comes before it."""

from collections.abc import Callable

import torch
from torch import Tensor

from thinwire.gradients.algorithms import RESIDUAL, TWO_STEP, algorithm
from thinwire.gradients.fsdp.passes import Passes
from thinwire.gradients.fsdp.units import Unit
from thinwire.gradients.group import Group
from thinwire.gradients.memory import OWED, State
from thinwire.gradients.primitives import make_group
from thinwire.links import Door


class CompressedReplicas:
    """One unit's hook after the reduce-scatter. It remembers this rank's slices, by parameter's name."""

    def __init__(
        self,
        unit: Unit,
        codec: str,
        door: Door,
        passes: Passes,
        *,
        feedback: bool,
        scale: Callable[[], float],
        seed: int,
    ) -> None:
        self._unit, self._codec, self._feedback = unit, codec, feedback
        self._door, self._passes, self._scale, self._seed = door, passes, scale, seed
        self._resting: State = {}
        self._group: Group | None = None
        self._partial: Tensor | None = None
        self._names_put_off: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._reduced = torch.empty(0)
        self.steps = 0
        self._sent = False

    def __call__(self, reduced: Tensor) -> None:
        names = self._unit.reduced(reduced.numel())
        if not self._unit.reduces_replicas():
            self._put_off(names, reduced)
            return
        if self._partial is not None:
            self._expect(names)
            reduced += self._partial
            self._partial = None
        group = self._use(names)
        if self._unit.sums():  # the user's factor may change from step to step
            reduced /= self._unit.divisors()[1]
        group.post(reduced, self.steps, self._scale())
        group.wait()
        fine = group.finish(reduced)
        if not fine:
            reduced.fill_(torch.nan)
        elif self._unit.sums():
            reduced.mul_(self._door.world_size * self._unit.divisors()[1])
        self._reduced = reduced  # on CUDA its storage must not be reused while the stream still works on it
        self.steps += 1
        self._sent = True
        self._passes.take(self, fine=fine)

    def commit(self) -> None:
        if self._sent and self._group is not None:
            self._group.commit()
        self._sent = False

    def drop(self) -> None:
        self._sent = False

    def owed(self) -> Tensor:
        """What is yet to be delivered to this rank's slices of all trained parameters, summed over all ranks with data.

        In the units of gradients. All ranks call it together.
        """
        self._rest()
        parts = []
        for name in self._unit.trained:
            part = torch.zeros(self._unit.sizes[name], dtype=torch.float32, device=self._unit.device)
            for kind in (RESIDUAL, OWED):
                if name in self._resting.get(kind, {}):
                    part += self._resting[kind][name].view(-1)
            parts.append(part)
        whole = torch.cat(parts).mul_(self._as_gradients())
        return self._door.all_reduce(whole, channel=f"{self._channel}.saved").wait()

    def owe(self, name: str, own_slice: Tensor) -> None:
        """Remember this replica's part of what is owed to a slice."""
        self._rest()
        self._resting.setdefault(RESIDUAL, {})[name] = own_slice / (self._as_gradients() * self._unit.num_replicas)

    def clear(self) -> None:
        self._rest()
        self._resting = {}

    @property
    def _channel(self) -> str:
        return f"gradients.{self._unit.number}"

    def _as_gradients(self) -> float:
        """What turns memory into gradients: the reduce-scatter's mean is undone, and FSDP's later division is done.

        With a factor of the user's both belong to the gradients that are remembered.
        """
        return 1.0 if self._unit.sums() else self._unit.num_shards / self._unit.divisors()[1]

    def _use(self, names: tuple[str, ...]) -> Group:
        """The group that sends these parameters, with what is remembered of them."""
        self.commit()
        if self._group is None or names != self._names:
            self._rest()
            method = algorithm(self._codec, feedback=self._feedback)
            # With two replicas, two steps send as many bytes as one and encode twice.
            two_step = TWO_STEP in method.primitives and self._door.world_size > 2
            self._group = make_group(
                self._unit.number,
                names,
                [self._unit.sizes[name] for name in names],
                method,
                TWO_STEP if two_step else method.primitives[0],
                self._door,
                device=self._unit.device,
                seed=self._seed,
                state=self._resting,
            )
            self._names = names
            for tensors in self._resting.values():
                for name in names:
                    tensors.pop(name, None)
        return self._group

    def _rest(self) -> None:
        """Put what the group remembers back by name, until a group is made again."""
        if self._group is not None:
            for kind, tensors in self._group.state().items():
                self._resting.setdefault(kind, {}).update(tensors)
        self._group, self._names = None, ()

    def _put_off(self, names: tuple[str, ...], reduced: Tensor) -> None:
        """Keep the gradients until replicas are reduced again. Until then zeros are added to `.grad`."""
        if self._partial is None:
            self._partial, self._names_put_off = reduced.clone(), names
        else:
            self._expect(names)
            self._partial += reduced
        reduced.zero_()

    def _expect(self, names: tuple[str, ...]) -> None:
        if names != self._names_put_off:
            raise RuntimeError(
                f"compress: while replicas were not reduced, {self._unit.name!r} had gradients for "
                f"{', '.join(self._names_put_off)}, now for {', '.join(names)}; use the same parameters in all "
                "of these steps"
            )
