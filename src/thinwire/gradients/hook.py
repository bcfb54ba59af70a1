"""DDP's communication hook: each bucket is a group of the plan, encoded when it is ready, decoded after backward."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.variable import Variable

from thinwire.gradients.algorithms import ALL_REDUCE, DENSE, NONE, algorithm
from thinwire.gradients.costs import READY
from thinwire.gradients.group import Group
from thinwire.gradients.memory import State
from thinwire.gradients.planning import Plan
from thinwire.gradients.primitives import make_group
from thinwire.gradients.progress import WINDOW, Progress, Watch
from thinwire.gradients.verdict import Verdict
from thinwire.links import Door

# DGC's first ratio. Each later stage of the warm-up uses a quarter of the one before.
WARM_UP_RATIO = 0.25


class LossScaler(Protocol):
    """What the hook needs of torch.amp.GradScaler."""

    def get_scale(self) -> float: ...


@dataclass
class MeasuredGroup:
    """When a group went through each stage in the last step, in seconds since forward ended."""

    group: int
    ready_s: float
    posted_s: float = 0.0
    transfer_s: float = 0.0
    arrived_s: float = 0.0
    done_s: float = 0.0


@dataclass(frozen=True)
class _Pending:
    group: Group
    parameters: list[Tensor]
    buffer: Tensor
    future: Any
    times: MeasuredGroup


class Hook:
    """State of the hook of one wrapped model.

    `skipped` counts the steps in which some rank's gradient was not finite. In such a step all gradients become NaN on
    all ranks, and no memory changes. `times` is the last step's timeline. `progress` says what lossy codecs have cost,
    window by window. `fell_back` is the codec of all groups once `auto` has given up its own choice.
    """

    def __init__(
        self,
        plan: Plan,
        door: Door,
        names: Mapping[int, str],
        *,
        scaler: LossScaler | None = None,
        state: Mapping[str, Tensor] | None = None,
        progress_every: int = WINDOW,
    ) -> None:
        self.plan, self.door = plan, door
        self._names = names  # names by the parameter's id
        self._scaler = scaler
        # Only groups with values: DDP may put empty parameters into any bucket.
        self._planned = [group for group in plan.groups if any(plan.sizes[name] for name in group.names)]
        self._groups: dict[int, Group] = {}
        self._state: dict[str, dict[str, Tensor]] = {}
        self._pending: list[_Pending] = []
        self._first_pass = plan.order == READY
        self._began_s = time.perf_counter()
        self.steps = 0  # steps in which the plan's groups were sent
        self.skipped = 0
        self.times: list[MeasuredGroup] = []
        self.progress: list[Progress] = []
        self.fell_back: str | None = None
        lossy = [algorithm(group.codec) for group in plan.groups if group.codec not in (NONE, *DENSE)]
        # An algorithm with its own momentum sends steps, not gradients, so there is nothing to compare.
        watched = progress_every and lossy and not any(method.has_momentum for method in lossy)
        self._watch = Watch(door, plan.seed, progress_every) if watched else None
        self._verdict = Verdict(plan)
        if state is not None:
            self.load_state_dict(state)

    def begin(self) -> None:
        """Forward is over: the clock of the timeline starts."""
        self._began_s = time.perf_counter()

    def take(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if not bucket.index():
            self.times = []
            if self._first_pass and not self.door.rank and not is_in_backward():
                raise ValueError(
                    f"join: rank {self.door.ranks[0]} has joined before it had a batch, and it is the one whose order "
                    "of gradients all go by; give it one batch at least"
                )
        parameters = [parameter for parameter in bucket.parameters() if parameter.numel()]
        named = [(self._names[id(parameter)], parameter.numel()) for parameter in parameters]
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        if named:
            group = self._group(len(self._pending), named, bucket.buffer().device)
            times = MeasuredGroup(group.number, self._now())
            scale = self._scaler.get_scale() if self._scaler is not None else 1.0
            if self._watch is not None:
                self._watch.came(group, bucket.buffer(), scale)
            group.post(bucket.buffer(), self.steps, scale)
            times.posted_s = self._now()
            self._pending.append(_Pending(group, parameters, bucket.buffer(), future, times))
        else:
            future.set_result(bucket.buffer())
        if bucket.is_last():
            if is_in_backward():
                # Must run before DDP's own callback, which waits for the futures. Here it is queued before that one.
                Variable._execution_engine.queue_callback(self._finish)
            else:  # this rank has joined: it takes part in the other ranks' collectives with zeros
                self._finish()
        return future

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's memory, under the keys KIND/PARAMETER, and the count of steps."""
        flat = {
            f"{kind}/{name}": tensor for kind, tensors in self._remembered().items() for name, tensor in tensors.items()
        }
        return {"steps": torch.tensor(self.steps), **flat}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._groups.clear()
        self._state = {}
        for key, tensor in state.items():
            kind, _, name = key.partition("/")
            if name:
                self._state.setdefault(kind, {})[name] = tensor
        self.steps = int(state["steps"])

    def _remembered(self) -> State:
        """The loaded state, updated by what the groups remember now."""
        state = {kind: dict(tensors) for kind, tensors in self._state.items()}
        for group in self._groups.values():
            for tensors in state.values():
                for name in group.names:
                    tensors.pop(name, None)
            for kind, tensors in group.state().items():
                state.setdefault(kind, {}).update(tensors)
        return state

    def _group(self, number: int, named: Sequence[tuple[str, int]], device: torch.device) -> Group:
        names, sizes = [name for name, _ in named], [size for _, size in named]
        if self._first_pass:
            # In its first pass DDP learns the order of gradients and uses buckets of its own. They go uncompressed.
            return make_group(number, names, sizes, algorithm(NONE), ALL_REDUCE, self.door, device=device)
        planned = self._planned[number] if number < len(self._planned) else None
        planned_names = planned.names if planned is not None else ()
        if planned is None or set(names) != {name for name in planned_names if self.plan.sizes[name]}:
            raise RuntimeError(
                f"DDP's bucket {number} holds {_some(names)}; the plan's group {number} holds {_some(planned_names)}. "
                "Gradients come in another order than when the profile was taken: profile it again, as it is"
            )
        if number not in self._groups:
            self._groups[number] = make_group(
                number,
                names,
                sizes,
                algorithm(self.fell_back or planned.codec, feedback=self.plan.feedback),
                ALL_REDUCE if self.fell_back else planned.primitive,
                self.door,
                device=device,
                seed=self.plan.seed,
                momentum=self.plan.momentum,
                state=self._state,
            )
        self._warm_up(self._groups[number])
        return self._groups[number]

    def _warm_up(self, group: Group) -> None:
        if group.algorithm.has_momentum and self.steps <= self.plan.warm_up_steps:
            group.use_ratio(warm_up_ratio(group.algorithm.ratio, self.steps, self.plan.warm_up_steps))

    def _finish(self) -> None:
        """Backward is over: wait for the groups and decode them, in order."""
        fine = True
        for pending in self._pending:
            pending.group.wait()
            pending.times.arrived_s = self._now()
            fine = pending.group.finish(pending.buffer) and fine
            pending.times.transfer_s = pending.group.transfer_s
            pending.times.done_s = self._now()
            self.times.append(pending.times)
        # A step counts for all groups or for none. A group that counted alone would lose what it has sent, since the
        # optimizer skips the step.
        for pending in self._pending:
            if not fine:
                pending.buffer.fill_(torch.nan)
            pending.future.set_result(pending.buffer)
        if not fine:
            self.skipped += 1
            self._pending.clear()
            warnings.warn(
                f"rank {self.door.ranks[self.door.rank]}: some rank's gradient was not finite in step {self.steps}: "
                "all are NaN now on all ranks, and what the codecs remember is as it was",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._first_pass:
            self._first_pass = False
        else:
            self.steps += 1
        self.door.step += 1
        if self.plan.order != READY:
            # Must run after DDP's own callback, which does not put every mean into its gradient.
            Variable._execution_engine.queue_callback(self._commit)
        else:
            self._commit()

    def _commit(self) -> None:
        """Remember what the codecs lost in this step.

        Where DDP did not put the mean into a parameter's gradient, no rank has used that parameter since the last step,
        and its memory stays as it was.
        """
        for pending in self._pending:
            if self.plan.order != READY:
                begin = 0
                for number, (parameter, size) in enumerate(zip(pending.parameters, pending.group.sizes, strict=True)):
                    if not was_taken(parameter, pending.buffer, begin):
                        pending.group.keep(number)
                        pending.buffer[begin : begin + size] = 0.0
                    begin += size
            pending.group.commit()
            if self._watch is not None:
                self._watch.applied(pending.group, pending.buffer, pending.group.scale)
        counts = bool(self._pending) and bool(self._groups)  # neither DDP's first pass nor a step that was not finite
        self._pending.clear()
        if not counts:
            return
        if self.fell_back is not None and self.fell_back != self._verdict.milder:
            self._go_by(self._verdict.milder)  # the memory has been sent in full, so the milder codec may start
        elif self._watch is not None and (progress := self._watch.step_over(self.steps, [*self._groups.values()])):
            self.progress.append(progress)
            if self._verdict.falls_back(progress):
                self._watch = None
                self._go_by(NONE)
                if not self.door.rank:
                    warnings.warn(self._verdict.words(progress), RuntimeWarning, stacklevel=2)

    def _go_by(self, spec: str) -> None:
        """Switch all groups to this codec. It sends what they remember with the next gradient."""
        self._state = self._remembered()
        self._groups.clear()
        self.fell_back = spec

    def _now(self) -> float:
        return time.perf_counter() - self._began_s


def run(state: Hook, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The communication hook: DDP calls it with each bucket."""
    return state.take(bucket)


def is_in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread."""
    return int(torch._C._current_graph_task_id()) >= 0


def was_taken(parameter: Tensor, buffer: Tensor, begin: int) -> bool:
    """Whether DDP put the bucket's values at `begin` into the parameter's gradient, as a view or as a copy."""
    gradient = parameter.grad
    if gradient is None:
        return False
    place = buffer.as_strided(gradient.shape, gradient.stride(), buffer.storage_offset() + begin)
    return gradient.data_ptr() == place.data_ptr() or torch.equal(gradient, place)


def warm_up_ratio(ratio: float, step: int, steps: int) -> float:
    """DGC's warm-up: a quarter of all values at first, then a quarter of that, down to `ratio`, in equal stages."""
    stages = [WARM_UP_RATIO]
    while stages[-1] / 4 > ratio:
        stages.append(stages[-1] / 4)
    if step >= steps or ratio >= WARM_UP_RATIO:
        return ratio
    return stages[step * len(stages) // steps]


def _some(names: Sequence[str]) -> str:
    return ", ".join(list(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "nothing"
