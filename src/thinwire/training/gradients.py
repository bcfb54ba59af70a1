"""Gradients of shared weights, summed over ranks in every backward pass, in one message or a few (`sums.py`)."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn, tensor
from torch.autograd.variable import Variable
from torch.utils.hooks import RemovableHandle

from thinwire.gradients import sent
from thinwire.gradients.algorithms import NONE
from thinwire.gradients.memory import State
from thinwire.links import Door
from thinwire.training.choosing import Chooser
from thinwire.training.sums import Coded, Float32, Named, Sums

# In a checkpoint, beside the kinds of memory: sums of the window in which progress is measured.
WINDOW = "window"


class GradientSum:
    """Hooks by which `loss.backward()` leaves the whole graph's gradients on every rank. Then they call `after`.

    With several `groups`, gradients of the last layers travel while those of the first layers are computed. Use them
    only if the backward pass waits for no other sums: sums are matched by order, and a rank whose nodes reach fewer
    weights posts its groups at other moments.

    `codec` is one of `gradients.algorithms`. By `none` gradients travel in float32. By any other, what it loses is
    remembered by the parameter's name and sent later. `auto` begins with `none`, and `chooser` says how it goes on.
    """

    def __init__(
        self,
        parameters: Iterable[Named],
        door: Door,
        after: Callable[[], None] = lambda: None,
        *,
        groups: int = 1,
        codec: str = NONE,
        seed: int = 0,
        place: Callable[[], str] | None = None,
        chooser: Chooser | None = None,
    ) -> None:
        """`place`: where in the run this is, for errors."""
        sent.check(codec)
        if (codec == sent.AUTO) != (chooser is not None):
            raise ValueError(f"gradients {codec!r}: a chooser goes with {sent.AUTO!r}, and with no other")
        codec = NONE if codec == sent.AUTO else codec
        self.chooser = chooser
        self._parameters: list[nn.Parameter] = []
        self._names: dict[nn.Parameter, str] = {}
        self._groups: list[list[Named]] = []
        self._num_groups = groups
        self._hooks: dict[nn.Parameter, list[RemovableHandle]] = {}
        self._door = door
        self._after = after
        self._seed = seed
        self._place = place or (lambda: f"epoch {door.step + 1}")
        self._before: dict[nn.Parameter, Tensor | None] | None = None  # gradients from before this pass
        self._missing: set[nn.Parameter] = set()
        self._num_posted = 0
        self.codec = codec
        self._is_coded = codec != NONE  # also by `none`, as long as a former codec's memory is to be sent
        self._kept: State = {}  # memory of parameters that are in no group now
        self._step = 0
        self._sums: Sums = Float32([], door)
        self.follow(parameters)

    @property
    def layout(self) -> list[list[int]]:
        """The sizes of the parameters, by group, in the order in which they are sent."""
        return [[parameter.numel() for _, parameter in group] for group in self._groups]

    def bytes_of_sum(self) -> int:
        """Bytes that all ranks together send for one sum, by the codec in force."""
        return sent.bytes_of(self.layout, self.codec, self._door.world_size)

    @property
    def records(self) -> list[dict[str, Any]]:
        """What `auto` has chosen or given up, each as plan.N.json has it, until somebody clears it."""
        return self.chooser.records if self.chooser is not None else []

    def step_begins(self) -> None:
        """A training step begins: its forward pass is next."""
        if self.chooser is not None and self._groups and self._before is None:
            codec = self.chooser.step_begins(self._named_sizes(), self._groups[0][0][1].device)
            if codec not in (None, self.codec):
                self.use(codec)

    def interrupt(self) -> None:
        """Something else than steps comes now."""
        if self.chooser is not None:
            self.chooser.interrupt()

    def follow(self, parameters: Iterable[Named]) -> None:
        """Sum the gradients of these parameters from now on; frozen ones are left out.

        Has an effect only between two backward passes. Give the same parameters on every rank.
        """
        named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        now = [parameter for _, parameter in named]
        same = len(now) == len(self._parameters) and all(map(operator.is_, now, self._parameters))
        if same or self._before is not None:
            return
        if self._parameters:
            self._expect_alike(now)
        kept = dict.fromkeys(now)
        memory = self._remembered()
        for name, parameter in named:  # a module that was put into another has a new name
            if (before := self._names.get(parameter, name)) != name:
                for tensors in memory.values():
                    if before in tensors:
                        tensors[name] = tensors.pop(before)
        self._names |= {parameter: name for name, parameter in named}
        self._parameters, self._groups = now, _cut(named[::-1], self._num_groups)
        if self._door.world_size == 1:
            return
        self._send_by(self.codec, memory)
        for parameter in [parameter for parameter in self._hooks if parameter not in kept]:
            for hook in self._hooks.pop(parameter):
                hook.remove()
        for parameter in now:
            if parameter not in self._hooks:
                self._hooks[parameter] = [parameter.register_hook(self._begin)]
                if self._num_groups > 1:
                    self._hooks[parameter].append(parameter.register_post_accumulate_grad_hook(self._have))

    def use(self, codec: str) -> None:
        """Send by this codec from the next backward pass on. It sends what the one before remembers."""
        self._is_coded = self._is_coded or codec != NONE
        self.codec = codec
        if self._door.world_size > 1:
            self._send_by(codec, self._remembered())

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """For a checkpoint: the codec in force, and this rank's memory under the keys KIND/PARAMETER."""
        facts: dict[str, Any] = {"codec": self.codec, "coded": self._is_coded, "step": self._now()}
        tensors = {
            f"{kind}/{name}": value for kind, memory in self._remembered().items() for name, value in memory.items()
        }
        if self.chooser is not None:
            facts["chooser"], window = self.chooser.state()
            tensors |= {f"{WINDOW}/{name}": value for name, value in window.items()}
        return facts, tensors

    def restore(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        memory: State = {}
        for key, remembered in tensors.items():
            kind, _, name = key.partition("/")
            memory.setdefault(kind, {})[name] = remembered
        window = memory.pop(WINDOW, {})
        self.codec, self._is_coded, self._step = facts["codec"], facts["coded"], facts["step"]
        self._sums = Float32(self._groups, self._door)  # what was remembered until now does not count
        if self._door.world_size > 1:
            self._send_by(self.codec, memory)
        if self.chooser is not None and "chooser" in facts:
            made = self._sums.groups if isinstance(self._sums, Coded) else []
            self.chooser.restore(facts["chooser"], window, self._named_sizes(), made)
            if isinstance(self._sums, Coded):
                self._sums.watch = self.chooser.watch

    def _named_sizes(self) -> list[list[tuple[str, int]]]:
        return [[(name, parameter.numel()) for name, parameter in group] for group in self._groups]

    def _remembered(self) -> State:
        memory = {kind: dict(tensors) for kind, tensors in self._kept.items()}
        if isinstance(self._sums, Coded):
            for kind, tensors in self._sums.state().items():
                memory.setdefault(kind, {}).update(tensors)
        return memory

    def _now(self) -> int:
        return self._sums.step if isinstance(self._sums, Coded) else self._step

    def _send_by(self, codec: str, memory: State) -> None:
        step, held = self._now(), {name for group in self._groups for name, _ in group}
        self._kept = {
            kind: {name: value for name, value in tensors.items() if name not in held}
            for kind, tensors in memory.items()
        }
        self._step = step
        if not self._is_coded:
            self._sums = Float32(self._groups, self._door)
            return
        self._sums = Coded(self._groups, self._door, codec, seed=self._seed, step=step, state=memory, place=self._place)
        if self.chooser is not None:
            self.chooser.regroup()
            self._sums.watch = self.chooser.watch

    def _expect_alike(self, parameters: Sequence[nn.Parameter]) -> None:
        """Raise if ranks want gradients of different weights: their sum would mix different weights."""
        sizes = [len(parameters), sum(parameter.numel() for parameter in parameters)]
        gathered = self._door.gather(
            tensor(sizes, device=parameters[0].device if parameters else None), channel="weights"
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
            self._num_posted = 0
            Variable._execution_engine.queue_callback(self._finish)

    def _have(self, parameter: nn.Parameter) -> None:
        self._missing.discard(parameter)
        # Groups go in the same order on all ranks, whichever gradient is ready first.
        while self._num_posted < len(self._groups) - 1 and not self._missing & {
            waited for _, waited in self._groups[self._num_posted]
        }:
            self._post()

    def _post(self) -> None:
        """Start the next group's sum."""
        self._sums.post(self._num_posted)
        self._num_posted += 1

    def _finish(self) -> None:
        while self._num_posted < len(self._groups):
            self._post()
        before, self._before = self._before or {}, None
        for parameter, new in self._sums.finish():
            # A weight that no rank's nodes reach gets no gradient.
            old = before[parameter]
            parameter.grad = new if old is None else old if new is None else old + new
        if self.chooser is not None and isinstance(self._sums, Coded):
            codec = self.chooser.step_over(self._sums.step, self._sums.groups)
            if codec is not None:
                self.use(codec)
        self._after()


def _cut(named: Sequence[Named], groups: int) -> list[list[Named]]:
    """Split the parameters, in order, into at most `groups` groups of about equal size."""
    total = sum(parameter.numel() for _, parameter in named)
    split: list[list[Named]] = [[] for _ in range(groups)]
    seen = 0
    for name, parameter in named:
        split[min(groups - 1, seen * groups // max(1, total))].append((name, parameter))
        seen += parameter.numel()
    return [group for group in split if group]


def check_codec(codec: str) -> None:
    """Raise unless gradients can be summed by this codec."""
    sent.check(codec)


def choosers(codec: str, **options: Any) -> Chooser | None:
    """The chooser that goes with this codec: one for `auto`, none for others."""
    return Chooser(**options) if codec == sent.AUTO else None


def bytes_of(parameters: Iterable[Named], world_size: int, *, groups: int = 1, codec: str = NONE) -> int:
    """Bytes that all ranks together send for one sum."""
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    layout = [[parameter.numel() for _, parameter in group] for group in _cut(named[::-1], groups)]
    return sent.bytes_of(layout, codec, world_size)
