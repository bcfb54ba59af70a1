"""Predict how long an iteration of a pipeline takes, from stage and transfer times: an event simulation. Pure.

A stage runs one action at a time, in its schedule's order, each as soon as its inputs have arrived. Transfers overlap
with computation, unless they block. With `hosts`, transfers share network cards: those from one stage to another go one
after the other, and transfers that enter or leave a host at the same time share its rate evenly.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.crossmesh.pipelines.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule
from thinwire.crossmesh.pipelines.timeline import Span, Timeline


@dataclass(frozen=True)
class StageCost:
    """How long a stage's actions take on one micro-batch, and how many bytes of activations it keeps for it."""

    forward_s: float
    backward_s: float
    input_s: float
    weight_s: float
    activation_bytes: int = 0

    def seconds(self, kind: str) -> float:
        seconds_of = {FORWARD: self.forward_s, BACKWARD: self.backward_s, INPUT: self.input_s, WEIGHT: self.weight_s}
        return seconds_of[kind]


@dataclass(frozen=True)
class WireCost:
    """A tensor that `source` makes and `destination`, any later stage, reads. Times are its own and its gradient's."""

    name: str
    source: int
    destination: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Costs:
    """hosts[i] is stage i's host. Without hosts, transfers never share a link, as between stages of one host."""

    stages: tuple[StageCost, ...]
    wires: tuple[WireCost, ...]
    hosts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for wire in self.wires:
            if not 0 <= wire.source < wire.destination < len(self.stages):
                raise ValueError(
                    f"wire {wire.name!r} goes from stage {wire.source} to {wire.destination} of {len(self.stages)}; "
                    "it must go to a later one"
                )
        if self.hosts and len(self.hosts) != len(self.stages):
            raise ValueError(f"{len(self.hosts)} hosts for {len(self.stages)} stages; give one for each, or none")
        times = [
            getattr(stage, name) for stage in self.stages for name in ("forward_s", "backward_s", "input_s", "weight_s")
        ]
        times += [seconds for wire in self.wires for seconds in (wire.forward_s, wire.backward_s)]
        if not all(0 <= seconds < float("inf") for seconds in times):
            raise ValueError(f"times are {times}; give finite seconds, 0 or more")


def chain(num_stages: int, *, forward_s: float, backward_s: float, transfer_s: float) -> Costs:
    """Equal stages, each sending to the next. The two parts of B take half its time each."""
    stage = StageCost(forward_s, backward_s, backward_s / 2, backward_s / 2)
    wires = [WireCost(f"h{number}", number - 1, number, transfer_s, transfer_s) for number in range(1, num_stages)]
    return Costs((stage,) * num_stages, tuple(wires))


def simulate(schedule: Schedule, costs: Costs, *, blocking: bool = False) -> Timeline:
    """Simulate one iteration. With `blocking`, a stage waits until what it sends has arrived."""
    if schedule.num_stages != len(costs.stages):
        raise ValueError(f"the schedule has {schedule.num_stages} stages, costs are of {len(costs.stages)}")
    return _Simulation(schedule, costs, blocking).run()


@dataclass
class _Sending:
    """A transfer that is queued or under way."""

    wire: WireCost
    kind: str
    microbatch: int
    left_s: float = 0.0  # seconds left if nothing else used its links
    begun_s: float | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """The sending and the receiving stage."""
        forward = self.kind == FORWARD
        return (self.wire.source, self.wire.destination) if forward else (self.wire.destination, self.wire.source)


class _Simulation:
    def __init__(self, schedule: Schedule, costs: Costs, blocking: bool) -> None:
        n = schedule.num_stages
        self._schedule, self._costs, self._blocking = schedule, costs, blocking
        self._upcoming = [0] * n
        self._busy = [False] * n
        self._missing = [self._needs(stage) for stage in range(n)]
        self._outboxes: dict[tuple[int, int], list[_Sending]] = {}  # by (sender, receiver); the first is under way
        self._beside: list[int] = [0] * n  # by sender: transfers under way that share no link
        self._events: list[tuple[float, int, Action | _Sending, int]] = []  # time, a tie-break, what ends, its stage
        self._count = 0
        self._spans: list[Span] = []

    def run(self) -> Timeline:
        now = 0.0
        self._start_all(now)
        while self._events or any(self._outboxes.values()):
            rates = self._rates()
            arrivals = [(now + box[0].left_s / rates[ends], ends) for ends, box in self._outboxes.items() if box]
            arrival, ends = min(arrivals, default=(float("inf"), (0, 0)))
            upcoming = min(arrival, self._events[0][0] if self._events else float("inf"))
            for transfer_ends, rate in rates.items():
                self._outboxes[transfer_ends][0].left_s -= (upcoming - now) * rate
            now = upcoming
            if arrival <= now:
                self._arrived(self._outboxes[ends].pop(0), now)
            else:
                _, _, ended, stage = heapq.heappop(self._events)
                if isinstance(ended, Action):
                    self._busy[stage] = False
                    self._send(ended, stage, now)
                else:
                    self._beside[stage] -= 1
                    self._arrived(ended, now)
            self._start_all(now)
        stages = range(self._schedule.num_stages)
        peaks = [self._schedule.peak_activations(stage) for stage in stages]
        sizes = [peaks[stage] * self._costs.stages[stage].activation_bytes for stage in stages]
        return Timeline(tuple(self._spans), tuple(peaks), tuple(sizes))

    def _needs(self, stage: int) -> dict[tuple[str, int], int]:
        """The number of tensors that each forward and backward still waits for."""
        incoming = sum(wire.destination == stage for wire in self._costs.wires)
        back = sum(wire.source == stage for wire in self._costs.wires)
        numbers = range(self._schedule.num_microbatches)
        return {(FORWARD, k): incoming for k in numbers} | {(BACKWARD, k): back for k in numbers}

    def _start_all(self, now: float) -> None:
        """Start all transfers and actions that can start."""
        for box in self._outboxes.values():
            if box and box[0].begun_s is None:
                box[0].begun_s = now
        for stage, actions in enumerate(self._schedule.stages):
            unsent = self._beside[stage] + sum(len(box) for ends, box in self._outboxes.items() if ends[0] == stage)
            if self._busy[stage] or self._upcoming[stage] == len(actions) or (self._blocking and unsent):
                continue
            action = actions[self._upcoming[stage]]
            waits_for = FORWARD if action.kind == FORWARD else BACKWARD
            if action.kind == WEIGHT or not self._missing[stage][waits_for, action.microbatch]:
                seconds = self._costs.stages[stage].seconds(action.kind)
                self._busy[stage] = True
                self._upcoming[stage] += 1
                self._spans.append(Span(stage, action.kind, action.microbatch, now, now + seconds))
                self._push(now + seconds, action, stage)

    def _push(self, time_s: float, what: Action | _Sending, stage: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, what, stage))

    def _send(self, action: Action, stage: int, now: float) -> None:
        wires: Sequence[WireCost] = ()
        if action.kind == FORWARD:
            wires = [wire for wire in self._costs.wires if wire.source == stage]
        elif action.sends_back:
            wires = [wire for wire in self._costs.wires if wire.destination == stage]
        kind = FORWARD if action.kind == FORWARD else BACKWARD
        for wire in wires:
            seconds = wire.forward_s if kind == FORWARD else wire.backward_s
            sending = _Sending(wire, kind, action.microbatch, seconds)
            if self._hosts(sending) is None:
                sending.begun_s = now
                self._beside[stage] += 1
                self._push(now + seconds, sending, stage)
            else:
                self._outboxes.setdefault(sending.ends, []).append(sending)

    def _arrived(self, sending: _Sending, now: float) -> None:
        sender, receiver = sending.ends
        assert sending.begun_s is not None
        self._missing[receiver][sending.kind, sending.microbatch] -= 1
        self._spans.append(Span(sender, sending.kind, sending.microbatch, sending.begun_s, now, sending.wire.name))

    def _hosts(self, sending: _Sending) -> tuple[int, int] | None:
        """The hosts whose network cards it passes through, or None inside a host."""
        if not self._costs.hosts:
            return None
        out, into = (self._costs.hosts[stage] for stage in sending.ends)
        return (out, into) if out != into else None

    def _rates(self) -> dict[tuple[int, int], float]:
        """Rates of transfers under way, as shares of the rate that each has alone: max-min fair over network cards."""
        cards: dict[tuple[str, int], set[tuple[int, int]]] = {}
        for ends, box in self._outboxes.items():
            hosts = self._hosts(box[0]) if box else None
            if hosts is not None:
                cards.setdefault(("out", hosts[0]), set()).add(ends)
                cards.setdefault(("in", hosts[1]), set()).add(ends)
        free = dict.fromkeys(cards, 1.0)
        rates: dict[tuple[int, int], float] = {}
        while any(cards.values()):
            # The fullest card limits its transfers. What they leave unused on other cards goes to the others there.
            fullest = min((card for card in cards if cards[card]), key=lambda card: free[card] / len(cards[card]))
            rate = free[fullest] / len(cards[fullest])
            for ends in list(cards[fullest]):
                rates[ends] = rate
                for card, users in cards.items():
                    if ends in users:
                        users.remove(ends)
                        free[card] = max(0.0, free[card] - rate)
        return rates
