"""Recorded epochs on other wires and other cores: how long they would take. Pure.

Ranks compute, post and wait as recorded. A transfer begins when the last rank has posted it, takes its fixed time, and
then shares the wires evenly with all that are under way. What ranks compute, and what transfers compute behind their
backs, shares the cores, where ranks have one machine; ranks on machines of their own share nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from thinwire.links.cost import CostModel
from thinwire.prediction.script import COMPUTE, POST, Script

NEVER = float("inf")
CLOSE_S = 1e-12


@dataclass
class _Transfer:
    missing: int  # ranks that have not posted it
    fixed_s: float  # left of what it takes however small it is
    wire_s: float  # left, if it had the wires to itself
    beside_s: float  # left of what its bytes make a thread of each rank compute
    is_over: bool = False


@dataclass
class _Rank:
    script: Script
    epoch: int = 0
    place: int = 0
    left_s: float = 0.0  # of what it computes now
    waits_for: str = ""
    ends: list[float] = field(default_factory=list)  # of epochs

    @property
    def is_done(self) -> bool:
        return self.epoch == len(self.script.epochs)

    @property
    def computes(self) -> bool:
        return not self.is_done and not self.waits_for


def replay(scripts: Sequence[Script], cost: CostModel, *, cores: int | None) -> list[float]:
    """Seconds of each epoch, by the rank that is last. `cores` that all ranks share; None: each has its own."""
    if len(scripts) != cost.world_size:
        raise ValueError(f"{len(scripts)} ranks were recorded, the wires are of {cost.world_size}; give as many")
    return _Replay(scripts, cost, cores).run()


class _Replay:
    def __init__(self, scripts: Sequence[Script], cost: CostModel, cores: int | None) -> None:
        self._cores = cores
        self._ranks = [_Rank(script) for script in scripts]
        self._transfers = {name: self._transfer(name, scripts, cost) for name in scripts[0].operations}
        self._flying: list[_Transfer] = []
        self._now = 0.0

    def run(self) -> list[float]:
        for rank in self._ranks:
            self._advance(rank)
        while not all(rank.is_done for rank in self._ranks):
            step_s = self._next_s()
            if step_s == NEVER:
                waiting = sorted({rank.waits_for for rank in self._ranks if rank.waits_for})
                raise ValueError(f"ranks wait for {', '.join(waiting)}, which not all of them posted; record again")
            self._pass(step_s)
        ends = [max(rank.ends[epoch] for rank in self._ranks) for epoch in range(len(self._ranks[0].ends))]
        return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]

    @staticmethod
    def _transfer(name: str, scripts: Sequence[Script], cost: CostModel) -> _Transfer:
        posted = [script.operations[name] for script in scripts if name in script.operations]
        kind, n = posted[0].kind, cost.world_size
        total = sum(sum(each.bytes_to.values()) for each in posted)
        beside_s = sum(script.beside_s for script in scripts) / n * total / n
        if kind == "all_to_all":
            whole = cost.all_to_all([[each.bytes_to.get(peer, 0) for peer in range(n)] for each in posted])
            nothing = cost.all_to_all([[0.0] * n] * n)
        elif kind == "all_reduce":
            size = max(sum(each.bytes_to.values()) for each in posted) * n / (2 * max(1, n - 1))
            whole, nothing = cost.all_reduce(size), cost.all_reduce(0.0)
        elif kind == "all_gather":
            size = max(sum(each.bytes_to.values()) for each in posted) / max(1, n - 1)
            whole, nothing = cost.all_gather([size] * n), cost.all_gather([0.0] * n)
        else:  # something small between two: no epoch is made of those
            whole, nothing = cost.all_gather([total / max(1, n)] * n), cost.all_gather([0.0] * n)
        fixed_s = min(whole, max(0.0, nothing))
        return _Transfer(len(posted), fixed_s, whole - fixed_s, beside_s)

    def _advance(self, rank: _Rank) -> None:
        """To the next step that takes time."""
        while not rank.is_done:
            steps = rank.script.epochs[rank.epoch]
            if rank.place == len(steps):
                rank.ends.append(self._now)
                rank.epoch, rank.place = rank.epoch + 1, 0
                continue
            kind, seconds, name = steps[rank.place]
            rank.place += 1
            if kind == COMPUTE:
                rank.left_s = seconds
                if seconds > CLOSE_S:
                    return
            elif kind == POST:
                transfer = self._transfers[name]
                transfer.missing -= 1
                if not transfer.missing:
                    self._flying.append(transfer)
            elif name in self._transfers and not self._transfers[name].is_over:
                rank.waits_for = name
                return

    def _rates(self) -> tuple[float, float]:
        """Of whoever computes, and of what is on the wires."""
        busy = sum(rank.computes for rank in self._ranks)
        busy += len(self._ranks) * sum(each.beside_s > CLOSE_S for each in self._flying)
        core = 1.0 if self._cores is None else min(1.0, self._cores / max(1, busy))
        return core, 1.0 / max(1, sum(each.fixed_s <= CLOSE_S < each.wire_s for each in self._flying))

    def _next_s(self) -> float:
        """Until the next thing ends."""
        core, wire = self._rates()
        times = [rank.left_s / core for rank in self._ranks if rank.computes]
        for each in self._flying:
            left = [each.fixed_s if each.fixed_s > CLOSE_S else each.wire_s / wire, each.beside_s / core]
            times.append(min((seconds for seconds in left if seconds > CLOSE_S), default=0.0))
        return min(times, default=NEVER)

    def _pass(self, step_s: float) -> None:
        core, wire = self._rates()
        self._now += step_s
        computing = [rank for rank in self._ranks if rank.computes]
        for each in self._flying:
            if each.fixed_s <= CLOSE_S:
                each.wire_s = max(0.0, each.wire_s - step_s * wire)
            each.fixed_s = max(0.0, each.fixed_s - step_s)
            each.beside_s = max(0.0, each.beside_s - step_s * core)
            each.is_over = max(each.fixed_s, each.wire_s, each.beside_s) <= CLOSE_S
        self._flying = [each for each in self._flying if not each.is_over]
        for rank in self._ranks:
            if rank.waits_for and self._transfers[rank.waits_for].is_over:
                rank.waits_for = ""
                self._advance(rank)
        for rank in computing:
            rank.left_s -= step_s * core
            if rank.left_s <= CLOSE_S:
                self._advance(rank)
