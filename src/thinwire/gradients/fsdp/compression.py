"""What was put into one model: its memory as DTensors, for torch.distributed.checkpoint at any number of ranks.

What ranks remember of a parameter is what the optimizer has yet to get of its gradient: with n ranks and the mean,
(1/n) sum of m over them. So it is saved as that sum, laid out like the parameter, with n beside it. With n' ranks the
owner of a slice takes the sum times n'/n for its m (each of R replicas an equal part), the others nothing: (1/n') sum
of m' is what it was. With a divide factor of the user's gradients are sums, and the sum stays as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from thinwire.gradients.fsdp.gather import DifferencesGathered
from thinwire.gradients.fsdp.passes import Passes
from thinwire.gradients.fsdp.replicas import CompressedReplicas
from thinwire.gradients.fsdp.scatter import CompressedReduceScatter
from thinwire.gradients.fsdp.units import Unit
from thinwire.gradients.wrapping import NAME
from thinwire.links import Door

# Keys of a state: `owed/NAME` and `held/NAME` for each parameter, and these.
OWED, HELD = "owed", "held"
RANKS, STEPS = "ranks", "steps"


class Compression:
    """`compression_of(model)`. A Stateful: torch.distributed.checkpoint saves and loads it as it is.

    `skipped` counts backward passes in which somebody's gradient was not finite.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        reducers: Sequence[CompressedReduceScatter | CompressedReplicas],
        gathers: Sequence[DifferencesGathered],
        passes: Passes,
        own_doors: Sequence[Door],
    ) -> None:
        self._units, self._reducers, self._gathers = units, reducers, gathers
        self._passes, self._own_doors = passes, own_doors

    @property
    def skipped(self) -> int:
        return self._passes.skipped

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, tensors by name. All ranks call it together, between steps."""
        state: dict[str, Any] = {
            RANKS: torch.tensor(self._num_ranks()),
            STEPS: torch.tensor(max(each.steps for each in self._reducers)),
        }
        for unit, reducer in zip(self._units, self._reducers, strict=True):
            if unit.trained:
                state |= _named(OWED, unit, unit.trained, reducer.owed())
        for unit, gather in zip(self._units, self._gathers, strict=bool(self._gathers)):
            state |= _named(HELD, unit, unit.names, gather.as_held())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave, here or at another number of ranks. What it does not name is forgotten.

        Set a divide factor of your own (`set_gradient_divide_factor`) before.
        """
        for unit, reducer in zip(self._units, self._reducers, strict=True):
            reducer.clear()
            grown = 1.0 if unit.sums() else self._num_ranks() / float(state[RANKS])
            for name in unit.trained:
                if f"{OWED}/{name}" in state:
                    own = unit.padded(name, _local(state[f"{OWED}/{name}"]))
                    reducer.owe(name, own.mul_(grown))
            reducer.steps = int(state[STEPS])
        for unit, gather in zip(self._units, self._gathers, strict=bool(self._gathers)):
            if all(f"{HELD}/{name}" in state for name in unit.names):
                held = [unit.padded(name, _local(state[f"{HELD}/{name}"])) for name in unit.names]
                gather.start_with(torch.cat(held))
            else:
                gather.reset()

    def reset_parameters(self) -> None:
        """Have the next gathers send all weights as they are: after they were set by hand. For all ranks together."""
        for gather in self._gathers:
            gather.reset()

    def close(self) -> None:
        """Close the doors that `compress` opened beside yours."""
        for door in self._own_doors:
            door.close()

    def _num_ranks(self) -> int:
        """How many ranks' gradients make one."""
        return self._units[0].num_shards * self._units[0].num_replicas


def compression_of(model: nn.Module) -> Compression:
    """The Compression that `compress` put into this model."""
    found = model.__dict__.get(NAME)
    if not isinstance(found, Compression):
        raise ValueError("compression_of: this model did not go through gradients.fsdp.compress")
    return found


def _named(what: str, unit: Unit, names: Sequence[str], own: Tensor) -> dict[str, DTensor]:
    """A rank's slice of a unit, as a DTensor for each parameter."""
    parts = own.split([unit.sizes[name] for name in names])
    return {f"{what}/{name}": unit.sharded(name, part) for name, part in zip(names, parts, strict=True)}


def _local(saved: Tensor) -> Tensor:
    return saved.to_local() if isinstance(saved, DTensor) else saved
