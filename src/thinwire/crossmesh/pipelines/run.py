"""A pipeline on real ranks: follows a schedule, sends while it computes, leaves a whole batch's gradients in `.grad`.

Stages may have different numbers of ranks, and edges may lead to any later stage. Receives are posted when the sender
can send (receives.py). Sends from one stage to another go in order, one at a time (outbox.py), by the plan between the
two stages' layouts. With blocking sends it is the baseline: a stage then waits until what it sends has arrived.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from thinwire.crossmesh.network import Network
from thinwire.crossmesh.pipelines import edges as shapes
from thinwire.crossmesh.pipelines.crossing import Crossing, crossings
from thinwire.crossmesh.pipelines.edges import Edge, Kind, StageRanks
from thinwire.crossmesh.pipelines.outbox import Handle, Outbox
from thinwire.crossmesh.pipelines.receives import Receive, receives
from thinwire.crossmesh.pipelines.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule
from thinwire.crossmesh.pipelines.stage import Loss, Stage
from thinwire.crossmesh.pipelines.timeline import Span
from thinwire.crossmesh.pipelines.weights import Weights
from thinwire.links import Door

T = TypeVar("T")

MEAN, SUM = "mean", "sum"


class Pipeline:
    """This rank's part of a pipeline. Every rank makes one, with the same arguments except its own stage's `module`.

    module      its forward takes tensors by name (incoming edges and inputs), or a single one by position. It returns
                a dict with a tensor for each outgoing edge, or a single tensor. What the last stage returns goes to
                `loss(returned, targets)`.
    ranks       of each stage: rank numbers, or a StageRanks that also says whether they split a batch by its rows (S0,
                the default) or each works on all of it (R).
    reduction   how `loss` reduces over its rows: "mean" or "sum".
    tied        weights shared by several stages: for each weight, its name in every such stage.
    blocking    a stage waits until what it sends has arrived, and its receivers have confirmed it.
    least_s     the least seconds of an action, by kind: emulates the pace of a host.
    """

    def __init__(
        self,
        module: nn.Module,
        ranks: Sequence[StageRanks | Sequence[int]],
        schedule: Schedule,
        door: Door,
        *,
        loss: Loss,
        edges: Sequence[Edge] | None = None,
        reduction: str = MEAN,
        tied: Sequence[Mapping[int, str]] = (),
        network: Network | None = None,
        blocking: bool = False,
        least_s: Mapping[str, float] | None = None,
    ) -> None:
        stages = [
            stage_ranks if isinstance(stage_ranks, StageRanks) else StageRanks(tuple(stage_ranks))
            for stage_ranks in ranks
        ]
        self.edges = shapes.chain(len(stages)) if edges is None else tuple(edges)
        if len(stages) != schedule.num_stages:
            raise ValueError(f"ranks are of {len(stages)} stages, the schedule has {schedule.num_stages}")
        if reduction not in (MEAN, SUM):
            raise ValueError(f"reduction is {reduction!r}; give {MEAN} or {SUM}, whichever the loss does")
        shapes.check_stages(stages, door.world_size)
        shapes.check(self.edges, len(stages))
        self.stage = shapes.stage_of(door.rank, stages)
        self.schedule, self.blocking, self._door = schedule, blocking, door
        self._own = stages[self.stage]
        self._reduction, self._least_s = reduction, dict(least_s or {})
        network = network or Network.even(range(door.world_size))
        device = next((parameter.device for parameter in module.parameters()), None)
        self._crossings = crossings(self.edges, stages, network, door, device, receipts=blocking)
        self._incoming = [edge for edge in self.edges if edge.destination == self.stage]
        self._outgoing = [edge for edge in self.edges if edge.source == self.stage]
        actions = schedule.stages[self.stage]
        last = self.stage == len(stages) - 1
        names = list(dict.fromkeys(edge.name for edge in self._outgoing))
        self._work = Stage(module, names, loss if last else None, any(action.kind == INPUT for action in actions))
        self._weights = Weights(module, stages, self.stage, tied, network, door)
        self._posts = receives(schedule, self.edges, self.stage)
        self._kinds: dict[tuple[Edge, int], Kind] = {}
        self._announced: dict[Edge, int] = dict.fromkeys(self._incoming, 0)
        self._outboxes = [Outbox() for _ in stages]  # by the other stage
        self._arriving: dict[Receive, Handle] = {}
        self._announcements: list[Handle] = []
        self._begun_s = 0.0
        self.spans: list[Span] = []  # of the last step, in seconds since its start

    @property
    def peak_activations(self) -> int:
        """The most micro-batches whose activations this rank has kept so far."""
        return self._work.peak

    @property
    def activation_bytes(self) -> int:
        """Bytes that this rank keeps of one micro-batch for its backward. Known after a forward."""
        return self._work.activation_bytes

    def crossing(self, edge: Edge) -> Crossing:
        """The transfers of an edge, for example to time them."""
        return self._crossings[edge]

    @property
    def own_edges(self) -> list[Edge]:
        """Edges that lead to this stage or away from it."""
        return [*self._incoming, *self._outgoing]

    def kind(self, edge: Edge, microbatch: int = 0) -> Kind:
        """The kind of tensor that crosses an edge. Known after a step."""
        if (edge, microbatch) not in self._kinds:
            raise ValueError(f"{edge}: not yet known here; run a step first, and ask for one of own_edges")
        return self._kinds[edge, microbatch]

    def step(self, inputs: Tensor | Mapping[str, Tensor] | None = None, targets: Tensor | None = None) -> Tensor | None:
        """Run all micro-batches of a batch. Returns the loss over the batch on the last stage's ranks, None on others.

        `inputs` is the whole batch, on every rank of stages whose module takes inputs; `targets` on the last stage's.
        Adds to `.grad`, as `backward` does. The first step also sends shapes along the edges, and hides less.
        """
        m = self.schedule.num_microbatches
        inputs_of = _cut({"x": inputs} if isinstance(inputs, Tensor) else dict(inputs or {}), m)
        targets_of = _cut({"targets": targets}, m) if targets is not None else [{}] * m
        num_rows = len(targets) if targets is not None else 0
        if self._work.loss is not None and self._reduction == MEAN and not num_rows:
            raise ValueError(
                "the mean of a batch needs its number of rows, which targets tell; give targets on the last stage's "
                f"ranks, or reduction={SUM!r}"
            )
        blocking = self.blocking and self._knows_all()
        self._weights.begin()
        self._begun_s = time.perf_counter()
        self.spans = []
        total = torch.zeros(())
        try:
            self._post(self._posts[0])
            for place, action in enumerate(self.schedule.stages[self.stage]):
                if action.kind == FORWARD:
                    target = targets_of[action.microbatch].get("targets")
                    total = total + self._forward(action, inputs_of[action.microbatch], target, num_rows)
                elif action.kind == WEIGHT:
                    self._timed(action, partial(self._work.backward_weight, action.microbatch))
                else:
                    self._backward(action)
                # Before waiting for sends to end: the other end may be waiting for its own sends too.
                self._post(self._posts[place + 1])
                if blocking:
                    self._settle()
            self._settle()
        finally:
            self._work.forget()
            self._arriving.clear()
        total = self._weights.sum(total)
        return total if self._work.loss is not None else None

    def relearn(self) -> None:
        """Call it on all ranks before a batch of another size: the next step sends shapes again."""
        self._kinds.clear()
        self._announced = dict.fromkeys(self._incoming, 0)

    def close(self) -> None:
        for outbox in self._outboxes:
            outbox.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forward(self, action: Action, inputs: dict[str, Tensor], target: Tensor | None, total_rows: int) -> Tensor:
        """This micro-batch's share of the loss, or 0 if this is not the last stage."""
        number = action.microbatch
        # Post all receives before waiting for one of them: it may be sent after another.
        for edge in self._incoming:
            self._expect(edge, number)
        crossed = {}
        for edge in self._incoming:
            tile = self._take(Receive(edge, True, number))
            crossed[edge.name] = tile.requires_grad_(self._kinds[edge, number].needs_gradient)
        num_rows = self._num_rows(number, inputs)
        rows = self._own.rows(num_rows, self._door.rank)
        inputs = {name: whole[rows] for name, whole in inputs.items()}
        target = target[rows] if target is not None else None
        share = (rows.stop - rows.start) / total_rows if self._reduction == MEAN and total_rows else 1.0
        outputs = self._timed(action, lambda: self._work.forward(number, crossed, inputs, target, share))
        if self._work.loss is not None:
            return outputs["loss"]
        for edge in self._outgoing:
            x, crossing = outputs[edge.name], self._crossings[edge]
            needs_gradient = self._work.needs_gradient(number, edge.name)
            kind = Kind.of(x, needs_gradient, self._own, num_rows, self._door.rank, edge.name)
            if (edge, number) not in self._kinds:
                self._kinds[edge, number] = kind
                # Not through the outbox: the receiver of an earlier send in it may still be waiting for this kind.
                self._announcements.append(crossing.announce(kind))
            if (known := self._kinds[edge, number]) != kind:
                raise ValueError(
                    f"{edge.name!r} of micro-batch {number} was {known}, now it is {kind}; call relearn() on all ranks "
                    "before a batch of another size"
                )
            self._send(edge, action, partial(crossing.forward, kind, x))
        return torch.zeros(())

    def _backward(self, action: Action) -> None:
        number = action.microbatch
        gradients: dict[str, Tensor] = {}
        for edge in self._outgoing:
            if self._kinds[edge, number].needs_gradient:
                gradient = self._take(Receive(edge, False, number))
                before = gradients.get(edge.name)
                gradients[edge.name] = gradient if before is None else before + gradient
        work = self._work.backward if action.kind == BACKWARD else self._work.backward_input
        input_gradients = self._timed(action, lambda: work(number, gradients))
        for edge in self._incoming:
            if edge.name in input_gradients:
                kind = self._kinds[edge, number]
                self._send(edge, action, partial(self._crossings[edge].backward, kind, input_gradients[edge.name]))

    def _post(self, posts: Sequence[Receive]) -> None:
        for receive in posts:
            kind = self._kinds.get((receive.edge, receive.microbatch))
            if kind is None:
                continue  # on the first step the kind is not known yet
            crossing = self._crossings[receive.edge]
            if receive.forward:
                self._arriving[receive] = crossing.forward(kind, None)
            elif kind.needs_gradient:
                self._arriving[receive] = crossing.backward(kind, None)

    def _expect(self, edge: Edge, number: int) -> None:
        """On the first step: hear which tensor comes, and post its receive. In the sender's order, not ours."""
        while (edge, number) not in self._kinds:
            forwards = [action for action in self.schedule.stages[edge.source] if action.kind == FORWARD]
            upcoming = forwards[self._announced[edge]].microbatch
            self._announced[edge] += 1
            self._kinds[edge, upcoming] = self._crossings[edge].announced()
            self._post([Receive(edge, True, upcoming)])

    def _take(self, receive: Receive) -> Tensor:
        """Wait for this receive."""
        tile = self._arriving.pop(receive).wait()
        assert isinstance(tile, Tensor), "a rank of the receiving stage has a tile"
        return tile

    def _send(self, edge: Edge, action: Action, start: Callable[[], Handle]) -> None:
        kind = FORWARD if action.kind == FORWARD else BACKWARD

        def ended(begun_s: float, ended_s: float) -> None:
            times = begun_s - self._begun_s, ended_s - self._begun_s
            self.spans.append(Span(self.stage, kind, action.microbatch, *times, wire=edge.name))

        other = edge.destination if kind == FORWARD else edge.source
        self._outboxes[other].put(start, ended)

    def _settle(self) -> None:
        """Wait until all sends have ended."""
        for outbox in self._outboxes:
            outbox.settle()
        while self._announcements:
            self._announcements.pop().wait()

    def _timed(self, action: Action, work: Callable[[], T]) -> T:
        """Run `work`. If it ends before `least_s`, sleep for the rest."""
        begun_s = time.perf_counter()
        result = work()
        rest_s = begun_s + self._least_s.get(action.kind, 0.0) - time.perf_counter()
        if rest_s > 0:
            time.sleep(rest_s)
        times = begun_s - self._begun_s, time.perf_counter() - self._begun_s
        self.spans.append(Span(self.stage, action.kind, action.microbatch, *times))
        return result

    def _num_rows(self, number: int, inputs: Mapping[str, Tensor]) -> int:
        """The micro-batch's number of rows, over all ranks of a stage together."""
        if inputs:
            return len(next(iter(inputs.values())))
        if not self._incoming:
            raise ValueError(f"stage {self.stage} has no edge that leads to it; give its ranks inputs")
        return self._kinds[self._incoming[0], number].num_rows

    def _knows_all(self) -> bool:
        m = self.schedule.num_microbatches
        return all((edge, number) in self._kinds for edge in self.own_edges for number in range(m))


def _cut(batch: Mapping[str, Tensor], num_microbatches: int) -> list[dict[str, Tensor]]:
    """Cut a batch into micro-batches, by rows."""
    for name, x in batch.items():
        if not x.dim() or len(x) < num_microbatches:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, the schedule {num_microbatches} micro-batches; give each a row"
            )
    cut = {name: x.tensor_split(num_microbatches) for name, x in batch.items()}
    return [{name: parts[number] for name, parts in cut.items()} for number in range(num_microbatches)]
