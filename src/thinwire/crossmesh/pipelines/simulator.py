"""How long an iteration of a pipeline takes, from stage and transfer times: events in order of time. Pure.

A stage does one action at a time, in its schedule's order, each as soon as what it needs has arrived. Transfers run
beside computation, unless they block. With `hosts` they meet at network cards: what a stage has for another goes one
after the other, and what enters or leaves a host at a time shares its rate evenly.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.crossmesh.pipelines.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule
from thinwire.crossmesh.pipelines.timeline import Span, Timeline


@dataclass(frozen=True)
class StageCost:
    """Seconds of a stage's actions on one micro-batch, and the bytes of activations it keeps for one."""

    forward_s: float
    backward_s: float
    input_s: float
    weight_s: float
    activation_bytes: int = 0

    def seconds(self, kind: str) -> float:
        own = {FORWARD: self.forward_s, BACKWARD: self.backward_s, INPUT: self.input_s, WEIGHT: self.weight_s}
        return own[kind]


@dataclass(frozen=True)
class WireCost:
    """A tensor that `source` makes and `destination`, any later stage, reads; seconds there and its gradient's back."""

    name: str
    source: int
    destination: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Costs:
    """hosts[i] is stage i's host; none given: transfers never meet, as they never do between stages of one host."""

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
            getattr(each, name) for each in self.stages for name in ("forward_s", "backward_s", "input_s", "weight_s")
        ]
        times += [seconds for wire in self.wires for seconds in (wire.forward_s, wire.backward_s)]
        if not all(0 <= seconds < float("inf") for seconds in times):
            raise ValueError(f"times are {times}; give finite seconds, 0 or more")


def chain(num_stages: int, *, forward_s: float, backward_s: float, transfer_s: float) -> Costs:
    """Equal stages, each sending to the next; B's two parts take half of it each."""
    stage = StageCost(forward_s, backward_s, backward_s / 2, backward_s / 2)
    wires = [WireCost(f"h{number}", number - 1, number, transfer_s, transfer_s) for number in range(1, num_stages)]
    return Costs((stage,) * num_stages, tuple(wires))


def simulate(schedule: Schedule, costs: Costs, *, blocking: bool = False) -> Timeline:
    """`blocking`: a stage stands still until what it sends has arrived."""
    if schedule.num_stages != len(costs.stages):
        raise ValueError(f"the schedule has {schedule.num_stages} stages, costs are of {len(costs.stages)}")
    return _Simulation(schedule, costs, blocking).run()


@dataclass
class _Sending:
    """A transfer that waits for its turn, or is under way."""

    wire: WireCost
    kind: str
    microbatch: int
    left_s: float = 0.0  # if it had its links to itself
    begun_s: float | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """Who sends, who receives."""
        forward = self.kind == FORWARD
        return (self.wire.source, self.wire.destination) if forward else (self.wire.destination, self.wire.source)


class _Simulation:
    def __init__(self, schedule: Schedule, costs: Costs, blocking: bool) -> None:
        n = schedule.num_stages
        self._schedule, self._costs, self._blocking = schedule, costs, blocking
        self._upcoming = [0] * n
        self._busy = [False] * n
        self._missing = [self._needs(stage) for stage in range(n)]
        self._outboxes: dict[tuple[int, int], list[_Sending]] = {}  # by the two ends; the first is under way
        self._beside: list[int] = [0] * n  # by sender: under way and meeting nobody
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
            for each, rate in rates.items():
                self._outboxes[each][0].left_s -= (upcoming - now) * rate
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
        """How many tensors each forward and backward still waits for."""
        incoming = sum(wire.destination == stage for wire in self._costs.wires)
        back = sum(wire.source == stage for wire in self._costs.wires)
        numbers = range(self._schedule.num_microbatches)
        return {(FORWARD, k): incoming for k in numbers} | {(BACKWARD, k): back for k in numbers}

    def _start_all(self, now: float) -> None:
        """Whatever can start, does."""
        for box in self._outboxes.values():
            if box and box[0].begun_s is None:
                box[0].begun_s = now
        for stage, own in enumerate(self._schedule.stages):
            unsent = self._beside[stage] + sum(len(box) for ends, box in self._outboxes.items() if ends[0] == stage)
            if self._busy[stage] or self._upcoming[stage] == len(own) or (self._blocking and unsent):
                continue
            action = own[self._upcoming[stage]]
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
        """Whose cards it goes through; None for none."""
        if not self._costs.hosts:
            return None
        out, into = (self._costs.hosts[stage] for stage in sending.ends)
        return (out, into) if out != into else None

    def _rates(self) -> dict[tuple[int, int], float]:
        """Of what is under way, as a share of what each would have alone: max-min fair over the cards."""
        cards: dict[tuple[str, int], set[tuple[int, int]]] = {}
        for ends, box in self._outboxes.items():
            hosts = self._hosts(box[0]) if box else None
            if hosts is not None:
                cards.setdefault(("out", hosts[0]), set()).add(ends)
                cards.setdefault(("in", hosts[1]), set()).add(ends)
        free = dict.fromkeys(cards, 1.0)
        rates: dict[tuple[int, int], float] = {}
        while any(cards.values()):
            # The fullest card holds its transfers back; what they leave on others is theirs.
            fullest = min((card for card in cards if cards[card]), key=lambda card: free[card] / len(cards[card]))
            rate = free[fullest] / len(cards[fullest])
            for ends in list(cards[fullest]):
                rates[ends] = rate
                for card, own in cards.items():
                    if ends in own:
                        own.remove(ends)
                        free[card] = max(0.0, free[card] - rate)
        return rates
