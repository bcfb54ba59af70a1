"""How long recorded epochs would take on other wires and other cores. Pure.

Ranks compute, post and wait as recorded. A transfer begins when the last rank has posted it, takes its fixed time, and
then shares the wires evenly with all transfers under way. If ranks are on one machine, their computation shares its
cores, and so does what transfers compute on other threads. Ranks on machines of their own share nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from thinwire.links.cost import CostModel
from thinwire.links.script import COMPUTE, POST, Script

NEVER = float("inf")
CLOSE_S = 1e-12


@dataclass
class _Transfer:
    missing: int  # ranks that have not posted it
    fixed_s: float  # left of the time that it takes whatever its size
    wire_s: float  # left of its time on the wires, if it had them to itself
    beside_s: float  # left of the seconds that a thread of each rank computes for it
    is_over: bool = False


@dataclass
class _Rank:
    script: Script
    epoch: int = 0
    place: int = 0
    left_s: float = 0.0  # of the computation under way
    waits_for: str = ""
    ends: list[float] = field(default_factory=list)  # of epochs

    @property
    def is_done(self) -> bool:
        return self.epoch == len(self.script.epochs)

    @property
    def computes(self) -> bool:
        return not self.is_done and not self.waits_for


def replay(scripts: Sequence[Script], cost: CostModel, *, cores: int | None) -> list[float]:
    """Seconds of each epoch, up to the last rank's end. All ranks share `cores`; None: each has cores of its own."""
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
        total = sum(sum(operation.bytes_to.values()) for operation in posted)
        beside_s = sum(script.beside_s for script in scripts) / n * total / n
        if kind == "all_to_all":
            whole = cost.all_to_all([[operation.bytes_to.get(peer, 0) for peer in range(n)] for operation in posted])
            nothing = cost.all_to_all([[0.0] * n] * n)
        elif kind == "all_reduce":
            size = max(sum(operation.bytes_to.values()) for operation in posted) * n / (2 * max(1, n - 1))
            whole, nothing = cost.all_reduce(size), cost.all_reduce(0.0)
        elif kind == "all_gather":
            size = max(sum(operation.bytes_to.values()) for operation in posted) / max(1, n - 1)
            whole, nothing = cost.all_gather([size] * n), cost.all_gather([0.0] * n)
        else:  # a small message between two ranks: it hardly counts in an epoch
            whole, nothing = cost.all_gather([total / max(1, n)] * n), cost.all_gather([0.0] * n)
        fixed_s = min(whole, max(0.0, nothing))
        return _Transfer(len(posted), fixed_s, whole - fixed_s, beside_s)

    def _advance(self, rank: _Rank) -> None:
        """Advance the rank to its next step that takes time."""
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
        """The speed of each computation, and of each transfer on the wires, as shares of full speed."""
        busy = sum(rank.computes for rank in self._ranks)
        busy += len(self._ranks) * sum(transfer.beside_s > CLOSE_S for transfer in self._flying)
        core = 1.0 if self._cores is None else min(1.0, self._cores / max(1, busy))
        return core, 1.0 / max(1, sum(transfer.fixed_s <= CLOSE_S < transfer.wire_s for transfer in self._flying))

    def _next_s(self) -> float:
        """Seconds until the next computation or phase of a transfer ends."""
        core, wire = self._rates()
        times = [rank.left_s / core for rank in self._ranks if rank.computes]
        for transfer in self._flying:
            moving_s = transfer.fixed_s if transfer.fixed_s > CLOSE_S else transfer.wire_s / wire
            left = [moving_s, transfer.beside_s / core]
            times.append(min((seconds for seconds in left if seconds > CLOSE_S), default=0.0))
        return min(times, default=NEVER)

    def _pass(self, step_s: float) -> None:
        core, wire = self._rates()
        self._now += step_s
        computing = [rank for rank in self._ranks if rank.computes]
        for transfer in self._flying:
            if transfer.fixed_s <= CLOSE_S:
                transfer.wire_s = max(0.0, transfer.wire_s - step_s * wire)
            transfer.fixed_s = max(0.0, transfer.fixed_s - step_s)
            transfer.beside_s = max(0.0, transfer.beside_s - step_s * core)
            transfer.is_over = max(transfer.fixed_s, transfer.wire_s, transfer.beside_s) <= CLOSE_S
        self._flying = [transfer for transfer in self._flying if not transfer.is_over]
        for rank in self._ranks:
            if rank.waits_for and self._transfers[rank.waits_for].is_over:
                rank.waits_for = ""
                self._advance(rank)
        for rank in computing:
            rank.left_s -= step_s * core
            if rank.left_s <= CLOSE_S:
                self._advance(rank)
