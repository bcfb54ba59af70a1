"""A pipeline on real ranks: obeys a schedule, sends beside computing, leaves a whole batch's gradients in `.grad`.

Stages may have different numbers of ranks, and edges may lead to any later stage. Receives are posted when the sender
can send (receives.py); what one stage has for another goes in order, one at a time (outbox.py), by the plan between the
two stages' layouts. With blocking sends it is the baseline: then a stage stands still until what it sends has arrived.
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
    """This rank's part. Every rank makes one with the same arguments, but for `module`, its own stage's.

    module      forward takes tensors by name (edges that lead here, and inputs), or the only one by place; returns a
                tensor for each edge that leads away by name, or the only one as it is. What the last stage returns
                goes to `loss(returned, targets)`.
    ranks       of each stage: numbers, or a StageRanks that also says whether they share a batch by its rows (S0, the
                usual) or each works on all of it (R).
    reduction   what `loss` does over the rows it is given: "mean" or "sum".
    tied        weights that are one although they live in several stages: for each, its name in every such stage.
    blocking    a stage stands still until what it sends has arrived, and its receivers have said so.
    least_s     makes actions of a kind last at least so long: an emulated host's pace.
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
        stages = [each if isinstance(each, StageRanks) else StageRanks(tuple(each)) for each in ranks]
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
        device = next((each.device for each in module.parameters()), None)
        self._crossings = crossings(self.edges, stages, network, door, device, receipts=blocking)
        self._incoming = [edge for edge in self.edges if edge.destination == self.stage]
        self._outgoing = [edge for edge in self.edges if edge.source == self.stage]
        actions = schedule.stages[self.stage]
        last = self.stage == len(stages) - 1
        names = list(dict.fromkeys(edge.name for edge in self._outgoing))
        self._work = Stage(module, names, loss if last else None, any(each.kind == INPUT for each in actions))
        self._weights = Weights(module, stages, self.stage, tied, network, door)
        self._posts = receives(schedule, self.edges, self.stage)
        self._kinds: dict[tuple[Edge, int], Kind] = {}
        self._announced: dict[Edge, int] = dict.fromkeys(self._incoming, 0)
        self._outboxes = [Outbox() for _ in stages]  # by the stage they lead to
        self._arriving: dict[Receive, Handle] = {}
        self._telling: list[Handle] = []
        self._begun_s = 0.0
        self.spans: list[Span] = []  # of the last step, from its start

    @property
    def peak_activations(self) -> int:
        """The most micro-batches that this rank ever kept activations of."""
        return self._work.peak

    @property
    def activation_bytes(self) -> int:
        """What this rank keeps of one micro-batch for backward; known after a forward."""
        return self._work.activation_bytes

    def crossing(self, edge: Edge) -> Crossing:
        """An edge's transfers, to time them."""
        return self._crossings[edge]

    @property
    def own_edges(self) -> list[Edge]:
        """That lead to this stage or away from it."""
        return [*self._incoming, *self._outgoing]

    def kind(self, edge: Edge, microbatch: int = 0) -> Kind:
        """What crosses there, once a step has shown it."""
        if (edge, microbatch) not in self._kinds:
            raise ValueError(f"{edge}: not yet known here; run a step first, and ask for one of own_edges")
        return self._kinds[edge, microbatch]

    def step(self, inputs: Tensor | Mapping[str, Tensor] | None = None, targets: Tensor | None = None) -> Tensor | None:
        """All micro-batches of a batch. The loss over all of it on the last stage's ranks, None on others.

        `inputs`: the whole batch, on every rank of a stage whose module takes some; `targets` on those of the last.
        Adds to `.grad`, as `backward` does. The first step tells shapes along the edges and hides less.
        """
        m = self.schedule.num_microbatches
        given = _cut({"x": inputs} if isinstance(inputs, Tensor) else dict(inputs or {}), m)
        wanted = _cut({"targets": targets}, m) if targets is not None else [{}] * m
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
                    target = wanted[action.microbatch].get("targets")
                    total = total + self._forward(action, given[action.microbatch], target, num_rows)
                elif action.kind == WEIGHT:
                    self._timed(action, partial(self._work.backward_weight, action.microbatch))
                else:
                    self._backward(action)
                # Before what is sent is waited for: the other end may do the same.
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
        """Before a batch of another size, on all ranks: shapes are sent anew."""
        self._kinds.clear()
        self._announced = dict.fromkeys(self._incoming, 0)

    def close(self) -> None:
        for outbox in self._outboxes:
            outbox.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forward(self, action: Action, given: dict[str, Tensor], target: Tensor | None, total_rows: int) -> Tensor:
        """This micro-batch's share of the loss; 0 where there is none."""
        number = action.microbatch
        # All of them are posted before one is waited for: it may be sent behind another.
        for edge in self._incoming:
            self._expect(edge, number)
        crossed = {}
        for edge in self._incoming:
            tile = self._take(Receive(edge, True, number))
            crossed[edge.name] = tile.requires_grad_(self._kinds[edge, number].needs_gradient)
        num_rows = self._num_rows(number, given)
        own = self._own.rows(num_rows, self._door.rank)
        given = {name: each[own] for name, each in given.items()}
        target = target[own] if target is not None else None
        share = (own.stop - own.start) / total_rows if self._reduction == MEAN and total_rows else 1.0
        made = self._timed(action, lambda: self._work.forward(number, crossed, given, target, share))
        if self._work.loss is not None:
            return made["loss"]
        for edge in self._outgoing:
            x, crossing = made[edge.name], self._crossings[edge]
            needs_gradient = self._work.needs_gradient(number, edge.name)
            kind = Kind.of(x, needs_gradient, self._own, num_rows, self._door.rank, edge.name)
            if (edge, number) not in self._kinds:
                self._kinds[edge, number] = kind
                # Past the outbox: who waits for this may not yet have posted what is there.
                self._telling.append(crossing.announce(kind))
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
        made = self._timed(action, lambda: work(number, gradients))
        for edge in self._incoming:
            if edge.name in made:
                kind = self._kinds[edge, number]
                self._send(edge, action, partial(self._crossings[edge].backward, kind, made[edge.name]))

    def _post(self, posts: Sequence[Receive]) -> None:
        for receive in posts:
            kind = self._kinds.get((receive.edge, receive.microbatch))
            if kind is None:
                continue  # on the first step: what comes is only known when it comes
            crossing = self._crossings[receive.edge]
            if receive.forward:
                self._arriving[receive] = crossing.forward(kind, None)
            elif kind.needs_gradient:
                self._arriving[receive] = crossing.backward(kind, None)

    def _expect(self, edge: Edge, number: int) -> None:
        """On the first step: hear what comes, and post it, in the sender's order, which need not be ours."""
        while (edge, number) not in self._kinds:
            forwards = [each for each in self.schedule.stages[edge.source] if each.kind == FORWARD]
            upcoming = forwards[self._announced[edge]].microbatch
            self._announced[edge] += 1
            self._kinds[edge, upcoming] = self._crossings[edge].announced()
            self._post([Receive(edge, True, upcoming)])

    def _take(self, receive: Receive) -> Tensor:
        """Wait for it."""
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
        """Wait until all that was to be sent has been."""
        for outbox in self._outboxes:
            outbox.settle()
        while self._telling:
            self._telling.pop().wait()

    def _timed(self, action: Action, work: Callable[[], T]) -> T:
        """Do it; if it should last longer, sleep for the rest."""
        begun_s = time.perf_counter()
        result = work()
        rest_s = begun_s + self._least_s.get(action.kind, 0.0) - time.perf_counter()
        if rest_s > 0:
            time.sleep(rest_s)
        times = begun_s - self._begun_s, time.perf_counter() - self._begun_s
        self.spans.append(Span(self.stage, action.kind, action.microbatch, *times))
        return result

    def _num_rows(self, number: int, given: Mapping[str, Tensor]) -> int:
        """Of the micro-batch, on all ranks of a stage together."""
        if given:
            return len(next(iter(given.values())))
        if not self._incoming:
            raise ValueError(f"stage {self.stage} has no edge that leads to it; give its ranks inputs")
        return self._kinds[self._incoming[0], number].num_rows

    def _knows_all(self) -> bool:
        m = self.schedule.num_microbatches
        return all((edge, number) in self._kinds for edge in self.own_edges for number in range(m))


def _cut(batch: Mapping[str, Tensor], num_microbatches: int) -> list[dict[str, Tensor]]:
    """A batch's micro-batches, by rows."""
    for name, each in batch.items():
        if not each.dim() or len(each) < num_microbatches:
            raise ValueError(
                f"{name} has shape {tuple(each.shape)}, the schedule {num_microbatches} micro-batches; give each a row"
            )
    cut = {name: each.tensor_split(num_microbatches) for name, each in batch.items()}
    return [{name: parts[number] for name, parts in cut.items()} for number in range(num_microbatches)]
