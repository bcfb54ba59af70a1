"""DDP's communication hook: a bucket is a group of the plan. Encode when it is ready, decode when backward is over."""

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

# DGC's first ratio; a quarter of it in each of the following parts of the warm-up.
WARM_UP_RATIO = 0.25


class LossScaler(Protocol):
    """What the hook needs of torch.amp.GradScaler."""

    def get_scale(self) -> float: ...


@dataclass
class MeasuredGroup:
    """A group in the last step; seconds since the pass began."""

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

    `skipped` counts the steps in which somebody's gradient was not finite: all gradients are NaN then on all ranks, and
    nothing that is remembered changes. `times` is the last step's timeline. `progress` is what lossy codecs have cost,
    window by window; `fell_back` is what groups go by since `auto` has given its codecs up.
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
        self._names = names  # by the parameter's id
        self._scaler = scaler
        # Without what has no values, which DDP puts where it likes.
        self._planned = [group for group in plan.groups if any(plan.sizes[name] for name in group.names)]
        self._groups: dict[int, Group] = {}
        self._state: dict[str, dict[str, Tensor]] = {}
        self._pending: list[_Pending] = []
        self._first_pass = plan.order == READY
        self._began_s = time.perf_counter()
        self.steps = 0  # in which groups were sent
        self.skipped = 0
        self.times: list[MeasuredGroup] = []
        self.progress: list[Progress] = []
        self.fell_back: str | None = None
        lossy = [algorithm(group.codec) for group in plan.groups if group.codec not in (NONE, *DENSE)]
        # With momentum of its own, what is sent is a step and no gradient.
        watched = progress_every and lossy and not any(each.has_momentum for each in lossy)
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
        parameters = [each for each in bucket.parameters() if each.numel()]
        named = [(self._names[id(each)], each.numel()) for each in parameters]
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
                # Before DDP's own last act, which waits for the futures: so it was queued before that.
                Variable._execution_engine.queue_callback(self._finish)
            else:  # this rank has joined: it answers the others' messages with zeros
                self._finish()
        return future

    def state_dict(self) -> dict[str, Tensor]:
        """Everything remembered, this rank's, by what and the parameter's name; and the count of steps."""
        flat = {f"{what}/{name}": tensor for what, own in self._remembered().items() for name, tensor in own.items()}
        return {"steps": torch.tensor(self.steps), **flat}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._groups.clear()
        self._state = {}
        for key, tensor in state.items():
            what, _, name = key.partition("/")
            if name:
                self._state.setdefault(what, {})[name] = tensor
        self.steps = int(state["steps"])

    def _remembered(self) -> State:
        now = {what: dict(own) for what, own in self._state.items()}
        for group in self._groups.values():
            for own in now.values():
                for name in group.names:
                    own.pop(name, None)
            for what, named in group.state().items():
                now.setdefault(what, {}).update(named)
        return now

    def _group(self, number: int, named: Sequence[tuple[str, int]], device: torch.device) -> Group:
        names, sizes = [name for name, _ in named], [size for _, size in named]
        if self._first_pass:
            # DDP learns the order of gradients in its first pass, and has groups of its own there: sent as they are.
            return make_group(number, names, sizes, algorithm(NONE), ALL_REDUCE, self.door, device=device)
        own = self._planned[number] if number < len(self._planned) else None
        planned = own.names if own is not None else ()
        if own is None or set(names) != {name for name in planned if self.plan.sizes[name]}:
            raise RuntimeError(
                f"DDP's bucket {number} holds {_some(names)}; the plan's group {number} holds {_some(planned)}. "
                "Gradients come in another order than when the profile was taken: profile it again, as it is"
            )
        if number not in self._groups:
            self._groups[number] = make_group(
                number,
                names,
                sizes,
                algorithm(self.fell_back or own.codec, feedback=self.plan.feedback),
                ALL_REDUCE if self.fell_back else own.primitive,
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
        """Backward is over: take what has come, in order."""
        fine = True
        for each in self._pending:
            each.group.wait()
            each.times.arrived_s = self._now()
            fine = each.group.finish(each.buffer) and fine
            each.times.transfer_s = each.group.transfer_s
            each.times.done_s = self._now()
            self.times.append(each.times)
        # A step counts for all groups or for none: what one has sent is lost if nobody takes the step.
        for each in self._pending:
            if not fine:
                each.buffer.fill_(torch.nan)
            each.future.set_result(each.buffer)
        if not fine:
            self.skipped += 1
            self._pending.clear()
            warnings.warn(
                f"rank {self.door.ranks[self.door.rank]}: somebody's gradient was not finite in step {self.steps}: all "
                "are NaN now on all ranks, and what the codecs remember is as it was",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._first_pass:
            self._first_pass = False
        else:
            self.steps += 1
        self.door.step += 1
        if self.plan.order != READY:
            # After DDP's last act, which may leave what has come where it is.
            Variable._execution_engine.queue_callback(self._commit)
        else:
            self._commit()

    def _commit(self) -> None:
        """Remember what the step has left. Not of a parameter whose mean DDP did not put into its gradient: no rank has
        used it since the last step.
        """
        for each in self._pending:
            if self.plan.order != READY:
                begin = 0
                for number, (parameter, size) in enumerate(zip(each.parameters, each.group.sizes, strict=True)):
                    if not was_taken(parameter, each.buffer, begin):
                        each.group.keep(number)
                        each.buffer[begin : begin + size] = 0.0
                    begin += size
            each.group.commit()
            if self._watch is not None:
                self._watch.applied(each.group, each.buffer, each.group.scale)
        counts = bool(self._pending) and bool(self._groups)  # not DDP's own first pass, nor a step that was not finite
        self._pending.clear()
        if not counts:
            return
        if self.fell_back is not None and self.fell_back != self._verdict.milder:
            self._go_by(self._verdict.milder)  # what was remembered has gone out whole
        elif self._watch is not None and (found := self._watch.step_over(self.steps, [*self._groups.values()])):
            self.progress.append(found)
            if self._verdict.falls_back(found):
                self._watch = None
                self._go_by(NONE)
                if not self.door.rank:
                    warnings.warn(self._verdict.words(found), RuntimeWarning, stacklevel=2)

    def _go_by(self, spec: str) -> None:
        """All groups, by a codec that sends what was remembered with the next gradient."""
        self._state = self._remembered()
        self._groups.clear()
        self.fell_back = spec

    def _now(self) -> float:
        return time.perf_counter() - self._began_s


def run(state: Hook, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The communication hook: DDP calls it with each bucket."""
    return state.take(bucket)


def is_in_backward() -> bool:
    return int(torch._C._current_graph_task_id()) >= 0


def was_taken(parameter: Tensor, buffer: Tensor, begin: int) -> bool:
    """Whether the parameter's gradient is what stands in its place of the bucket, by DDP's view or copy."""
    gradient = parameter.grad
    if gradient is None:
        return False
    place = buffer.as_strided(gradient.shape, gradient.stride(), buffer.storage_offset() + begin)
    return gradient.data_ptr() == place.data_ptr() or torch.equal(gradient, place)


def warm_up_ratio(ratio: float, step: int, steps: int) -> float:
    """DGC's: a quarter of all values at first, then a quarter of that, down to `ratio`, in equal parts of `steps`."""
    stages = [WARM_UP_RATIO]
    while stages[-1] / 4 > ratio:
        stages.append(stages[-1] / 4)
    if step >= steps or ratio >= WARM_UP_RATIO:
        return ratio
    return stages[step * len(stages) // steps]


def _some(names: Sequence[str]) -> str:
    return ", ".join(list(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "nothing"
