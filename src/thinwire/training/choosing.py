"""`auto` for weights' gradients: a codec is chosen once, after a few steps in float32, and judged ever after.

A few steps are recorded as they are: when each rank computes, posts and waits, halo rows or features included. If ranks
could not save a tenth of a step even without gradients, float32 stays: they hardly wait, or what they wait for is not
the bytes. That is seen by a few messages as large as the gradients, which tell the wires' rate too. Then the codecs are
timed, and `gradients/sharing.py` replays the steps with each. Afterwards the progress of a lossy codec is measured in
the run, and it is given up where it costs more than it saves (decision 18).

Everything here happens on all ranks together, in the same step, with the same result.
"""

import itertools
import statistics
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thinwire.gradients.algorithms import LEAST_GAIN, NONE
from thinwire.gradients.measure import value_seconds
from thinwire.gradients.progress import Watch
from thinwire.gradients.sharing import CHANNEL, CODECS, Choice, Measured, choose, plan_of
from thinwire.gradients.verdict import Verdict
from thinwire.links import Door
from thinwire.links.cost import KINDS, CostModel, Hinge, Link
from thinwire.links.event_log import EventLog, Moment
from thinwire.links.script import Script, script, steadied
from thinwire.training import machine

GATHERED = "gradients.choice"
# The share of a step that there must be to save.
WORTH = 1 - 1 / LEAST_GAIN
# To see what bytes cost: values of a message that on fast wires takes longer than a scheduler disturbs, and tries.
LARGE, TRIES = 1 << 16, 3


class Chooser:
    """Chooses for one GradientSum, which tells it of every step.

    `skipped` steps pass first; then `noted` ones are recorded, of which all but the first `unsettled` count: those wait
    for messages from before the recording.
    """

    def __init__(
        self, door: Door, *, seed: int, cost: CostModel | None, skipped: int, noted: int, unsettled: int
    ) -> None:
        self._door, self._seed, self._cost = door, seed, cost
        self._skipped, self._noted, self._unsettled = skipped, noted, unsettled
        self._steps = 0  # that began
        self._event_log: EventLog | None = None
        self._ends: list[Moment] = []
        self.choice: Choice | None = None
        self.records: list[dict[str, Any]] = []  # what was chosen or given up since somebody looked
        self._verdict: Verdict | None = None
        self.watch: Watch | None = None
        self.share: float | None = None  # of the progress of float32 in the last window

    def interrupt(self) -> None:
        """Something else than steps comes now: a recording begins anew after it."""
        if self._event_log is not None:
            self._door.books.event_log, self._event_log = None, None
            self._steps = min(self._steps, self._skipped)

    def step_begins(self, groups: list[list[tuple[str, int]]], device: torch.device) -> str | None:
        """A step begins, and the one before is over. Returns the codec to use from now on, if one was just chosen."""
        if self.choice is not None or self._door.world_size == 1:
            return None
        books = self._door.books
        if self._event_log is not books.event_log:  # somebody else records since then
            self._event_log = None
        if self._event_log is None:
            if self._steps >= self._skipped and books.event_log is None:
                books.event_log = self._event_log = EventLog()
                self._ends = []
            self._steps += 1
            return None
        self._ends.append(Moment.now())
        if len(self._ends) < self._noted:
            return None
        event_log, self._event_log, books.event_log = self._event_log, None, None
        self.adopt(self._chosen(event_log, groups, device), groups)
        assert self.choice is not None
        self.records.append({"gradients": self.choice.to_json()})
        return self.choice.codec

    def adopt(self, choice: Choice, groups: list[list[tuple[str, int]]]) -> None:
        """Go by this choice, and watch what it achieves."""
        self.choice = choice
        if choice.codec == NONE:
            return
        plan = plan_of(choice, groups, self._door.world_size, self._seed)
        if plan.rivals:
            self._verdict = Verdict(plan)
            self.watch = Watch(self._door, self._seed)

    def regroup(self) -> None:
        """The groups have changed: a new window begins."""
        if self.watch is not None:
            self.watch = Watch(self._door, self._seed)

    def step_over(self, step: int, groups: Any) -> str | None:
        """The sums of a step were applied. Returns the codec to fall back to, if the one in force costs too much."""
        if self.watch is None or self._verdict is None or self.choice is None:
            return None
        progress = self.watch.step_over(step, groups)
        if progress is None:
            return None
        self.share = progress.share
        if not self._verdict.falls_back(progress):
            return None
        words = self._verdict.words(progress)
        milder = self._verdict.milder
        self.choice = Choice(milder, words, self.choice.step_s)
        self.watch, self._verdict = None, None
        self.records.append({"gradients": self.choice.to_json()})
        if not self._door.rank:
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return milder

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """For a checkpoint."""
        if self.choice is None:
            return {"choice": None}, {}
        facts: dict[str, Any] = {"choice": self.choice.to_json()}
        if self.watch is None or self._verdict is None:
            return facts, {}
        window, tensors = self.watch.state()
        return facts | {"window": window, "behind": self._verdict.behind}, tensors

    def restore(
        self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], groups: list[list[tuple[str, int]]], made: Any
    ) -> None:
        """Go on from what `state` returned; `made` are the groups that send now."""
        if facts["choice"] is None:
            return
        kept = facts["choice"]
        self.adopt(Choice(kept["codec"], kept["why"], kept["predicted_step_s"]), groups)
        if "window" not in facts:  # the codec is what another one fell back to
            self.watch, self._verdict = None, None
        elif self.watch is not None and self._verdict is not None:
            self._verdict.behind = facts["behind"]
            self.watch.restore(facts["window"], tensors, made)

    def _chosen(self, event_log: EventLog, groups: list[list[tuple[str, int]]], device: torch.device) -> Choice:
        ends_s = [event_log.begun.at_s, *(end.at_s for end in self._ends)]
        measured_s = self._door.gather(statistics.median(_between(ends_s)[self._unsettled :]), channel=GATHERED)
        step_s = float(measured_s.max())
        begun_s = ends_s[self._unsettled]
        counted = self._noted - self._unsettled
        cost = self._cost
        if cost is None:
            # No rank can save more than what it waits for, and no more of other waits than gradients are on the wires.
            waits_s = self._door.gather(_savings_s(event_log, begun_s) / counted, channel=GATHERED).min().item()
            if (share := waits_s / step_s) < WORTH:
                return Choice(NONE, f"ranks wait for gradients, or behind them, for at most {share:.0%} of a step")
            values = sum(size for group in groups for _, size in group)
            cost = self._wires(values, device)
            # Other messages on the same wires may make them last twice as long.
            bytes_s = 2 * (cost.all_reduce(4 * values) - cost.all_reduce(0))
            if (share := bytes_s / step_s) < WORTH:
                return Choice(
                    NONE, f"the bytes of gradients take at most {share:.0%} of a step: ranks wait for other things"
                )
        sizes = [[size for _, size in group] for group in groups]
        codecs = value_seconds(CODECS, [size for group in sizes for size in group if size], self._door, device)
        noted = steadied(script(event_log, self._ends, by_wall=torch.get_num_threads() > 1, beside_s=0.0))
        scripts = [Script.from_json(content) for content in self._door.gather_json(noted.to_json(), channel=GATHERED)]
        weights = [float(number >= self._unsettled) for number in range(self._noted)]
        measured = Measured(sizes, codecs)
        # A profile says what the wires are; without one the step that was measured bounds what is predicted.
        known_s = step_s if self._cost is None else None
        choice = choose(scripts, weights, cost, measured, cores=machine.shared_cores(), measured_s=known_s)
        # All go by the first rank's: different processors may differ in the last digits.
        agreed = self._door.gather_json(choice.to_json(), channel=GATHERED)[0]
        return Choice(agreed["codec"], agreed["why"], agreed["predicted_step_s"])

    def _wires(self, num_values: int, device: torch.device) -> CostModel:
        """What sums over all ranks say of the wires: one of all gradients, beside one of nothing."""
        n, largest = self._door.world_size, max(num_values, LARGE)
        seconds: dict[int, list[float]] = {1: [], largest: []}
        for _ in range(TRIES):
            for size, taken in seconds.items():
                message = torch.zeros(size, device=device)
                self._door.barrier(channel=GATHERED)
                start = time.perf_counter()
                self._door.all_reduce(message, channel=GATHERED).wait()
                taken.append(self._door.gather(time.perf_counter() - start, channel=GATHERED).max().item())
        nothing_s = min(seconds[1])
        rate = 2 * (n - 1) / n * 4 * largest / max(min(seconds[largest]) - nothing_s, 1e-9)
        round_s = nothing_s / (2 * (n - 1))  # it goes round the ring twice
        rounds = {"all_to_all": 1, "all_gather": n - 1, "all_reduce": 2 * (n - 1), "broadcast": 1}
        links = {pair: Link(*pair, round_s, round_s, rate) for pair in itertools.permutations(range(n), 2)}
        return CostModel(n, links, {kind: Hinge(rounds[kind] * round_s, rounds[kind] * round_s, 1.0) for kind in KINDS})


def _savings_s(event_log: EventLog, begun_s: float) -> float:
    """At most how much less this rank would wait if there were no gradients."""
    gradients_s = others_s = on_wire_s = 0.0
    for entry in event_log.entries:
        if entry.posted.at_s < begun_s:
            continue
        waited_s = sum(ended.at_s - begun.at_s for begun, ended in entry.waits)
        if entry.channel == CHANNEL:
            gradients_s += waited_s
            on_wire_s += (entry.ended_s or time.perf_counter()) - entry.posted.at_s
        else:
            others_s += waited_s
    return gradients_s + min(others_s, on_wire_s)


def _between(marks: list[float]) -> list[float]:
    return [end - begin for begin, end in itertools.pairwise(marks)]
