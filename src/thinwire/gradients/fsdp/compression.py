"""The compression of one model. Its memory is saved as DTensors, so that another number of ranks can load it.

What ranks remember of a parameter is the part of its gradient that the optimizer has yet to get. With n ranks and the
mean this is (1/n) sum of m over ranks. The sum is saved, laid out like the parameter, together with n. When n' ranks
load it, the owner of a slice sets its m to n'/n times the sum (each of R replicas to an equal part of that), and the
other ranks start from zero: (1/n') sum of m' is as before. If the user has set a divide factor, gradients are sums, and
the saved sum is used as it is.
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
    """What `compression_of(model)` returns. A Stateful, which torch.distributed.checkpoint can save and load.

    `skipped` counts backward passes in which some rank's gradient was not finite.
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
        """What is remembered, as tensors by name. All ranks call it together, between steps."""
        state: dict[str, Any] = {
            RANKS: torch.tensor(self._num_ranks()),
            STEPS: torch.tensor(max(reducer.steps for reducer in self._reducers)),
        }
        for unit, reducer in zip(self._units, self._reducers, strict=True):
            if unit.trained:
                state |= _named(OWED, unit, unit.trained, reducer.owed())
        for unit, gather in zip(self._units, self._gathers, strict=bool(self._gathers)):
            state |= _named(HELD, unit, unit.names, gather.as_held())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave, with any number of ranks. Memory of parameters that it does not name is cleared.

        If you use a divide factor (`set_gradient_divide_factor`), set it before.
        """
        for unit, reducer in zip(self._units, self._reducers, strict=True):
            reducer.clear()
            factor = 1.0 if unit.sums() else self._num_ranks() / float(state[RANKS])
            for name in unit.trained:
                if f"{OWED}/{name}" in state:
                    own_slice = unit.padded(name, _local(state[f"{OWED}/{name}"]))
                    reducer.owe(name, own_slice.mul_(factor))
            reducer.steps = int(state[STEPS])
        for unit, gather in zip(self._units, self._gathers, strict=bool(self._gathers)):
            if all(f"{HELD}/{name}" in state for name in unit.names):
                held = [unit.padded(name, _local(state[f"{HELD}/{name}"])) for name in unit.names]
                gather.start_with(torch.cat(held))
            else:
                gather.reset()

    def reset_parameters(self) -> None:
        """Let the next gathers send all weights as they are. Call it on all ranks after setting weights by hand."""
        for gather in self._gathers:
            gather.reset()

    def close(self) -> None:
        """Close the doors that `compress` opened itself."""
        for door in self._own_doors:
            door.close()

    def _num_ranks(self) -> int:
        """The number of ranks whose gradients are combined."""
        return self._units[0].num_shards * self._units[0].num_replicas


def compression_of(model: nn.Module) -> Compression:
    """The Compression that `compress` put into this model."""
    compression = model.__dict__.get(NAME)
    if not isinstance(compression, Compression):
        raise ValueError("compression_of: this model did not go through gradients.fsdp.compress")
    return compression


def _named(kind: str, unit: Unit, names: Sequence[str], own_slice: Tensor) -> dict[str, DTensor]:
    """This rank's slice of a unit, as a DTensor for each parameter, under the keys KIND/NAME."""
    parts = own_slice.split([unit.sizes[name] for name in names])
    return {f"{kind}/{name}": unit.sharded(name, part) for name, part in zip(names, parts, strict=True)}


def _local(saved: Tensor) -> Tensor:
    return saved.to_local() if isinstance(saved, DTensor) else saved
