"""Pipeline schedules as printable data: which micro-batch each stage works on, in which order. Pure.

n stages, m micro-batches. Stage i, counted from 0, runs w_i forwards before its first backward and then one backward
and one forward in turn. w_i = n - i is 1F1B. w_i = min(m, 2 (n - i) - 1) is eager-1F1B (arXiv 2211.05322): it gives
every forward transfer one micro-batch of slack, and in return keeps up to twice the activations. w_i = m is GPipe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)


@dataclass(frozen=True)
class Action:
    """A stage's work on one micro-batch: F forward, B backward; or B's two parts, I for inputs and W for weights."""

    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> "Action":
        kind, number = text[:1], text[1:]
        if kind not in KINDS or not (number.isascii() and number.isdigit()):
            raise ValueError(f"action {text!r}: give {', '.join(KINDS)} and a micro-batch, for example F0")
        return Action(kind, int(number))

    @property
    def sends_back(self) -> bool:
        """Whether the gradient of the inputs is ready when it ends."""
        return self.kind in (BACKWARD, INPUT)

    @property
    def releases(self) -> bool:
        """Whether the micro-batch's activations are no longer needed when it ends."""
        return self.kind in (BACKWARD, WEIGHT)


@dataclass(frozen=True)
class Schedule:
    """Actions by stage. Raises if it could not run to its end: see `check`."""

    stages: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        check(self.stages)

    def __str__(self) -> str:
        return "\n".join(f"r{stage}: {' '.join(map(str, actions))}" for stage, actions in enumerate(self.stages))

    @staticmethod
    def parse(text: str) -> "Schedule":
        """The schedule whose `str` is `text`."""
        stages = []
        for number, line in enumerate(text.strip().splitlines()):
            name, colon, actions = line.strip().partition(":")
            if not colon or name != f"r{number}":
                raise ValueError(f"line {number} is {line!r}; give `r{number}: F0 ...`, a line a stage, in order")
            stages.append(tuple(map(Action.parse, actions.split())))
        return Schedule(tuple(stages))

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def num_microbatches(self) -> int:
        return sum(action.kind == FORWARD for action in self.stages[0])

    @property
    def is_split(self) -> bool:
        return any(action.kind == WEIGHT for actions in self.stages for action in actions)

    def warm_up(self, stage: int) -> int:
        """Forwards before the first backward."""
        kinds = [action.kind for action in self.stages[stage]]
        return next(place for place, kind in enumerate(kinds) if kind != FORWARD)

    def peak_activations(self, stage: int) -> int:
        """The most micro-batches whose activations a stage keeps. It depends only on the order, not on times."""
        kept = peak = 0
        for action in self.stages[stage]:
            kept += action.kind == FORWARD
            peak = max(peak, kept)
            kept -= action.releases
        return peak


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards."""
    return warmed_up([num_microbatches] * num_stages, num_microbatches)


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B: the fewest activations with which no stage waits, if transfers take no time."""
    return warmed_up(shallow(num_stages, num_microbatches), num_microbatches)


def eager_1f1b(num_stages: int, num_microbatches: int) -> Schedule:
    """Forwards run one micro-batch per stage ahead, so that forward transfers up to F + B long are hidden."""
    return warmed_up(deep(num_stages, num_microbatches), num_microbatches)


def shallow(num_stages: int, num_microbatches: int) -> list[int]:
    """The warm-up of 1F1B, by stage."""
    return [min(num_microbatches, num_stages - stage) for stage in range(num_stages)]


def deep(num_stages: int, num_microbatches: int) -> list[int]:
    """The warm-up of eager-1F1B, by stage."""
    return [min(num_microbatches, 2 * (num_stages - stage) - 1) for stage in range(num_stages)]


def warmed_up(warm_up: Sequence[int], num_microbatches: int) -> Schedule:
    """Stage i runs warm_up[i] forwards, then a backward and a forward in turn. Depths must not rise with i."""
    if not warm_up or num_microbatches < 1:
        raise ValueError(f"{len(warm_up)} stages, {num_microbatches} micro-batches; give at least one of each")
    stages = []
    for stage, depth in enumerate(warm_up):
        if not 1 <= depth <= num_microbatches:
            raise ValueError(f"stage {stage}: a warm-up of {depth} forwards; give 1 to {num_microbatches}")
        if stage and depth > warm_up[stage - 1]:
            raise ValueError(
                f"stage {stage} would wait for {depth} forwards, and the one before it runs {warm_up[stage - 1]} until "
                "the first backward comes; give depths that don't rise"
            )
        actions = [Action(FORWARD, number) for number in range(depth)]
        for number in range(num_microbatches):
            actions.append(Action(BACKWARD, number))
            if number + depth < num_microbatches:
                actions.append(Action(FORWARD, number + depth))
        stages.append(tuple(actions))
    return Schedule(tuple(stages))


def split(schedule: Schedule, *, delay: int = 0) -> Schedule:
    """Backward weight delaying: B becomes I, whose result is sent at once, and W, which runs during that transfer.

    The first stage keeps its B, since it sends nothing back. `delay` puts W behind that many more I's. That fills the
    bubbles at the end, and keeps that many more activations.
    """
    if delay < 0:
        raise ValueError(f"delay is {delay}; give 0 (W right after its I) or more")
    stages = [schedule.stages[0]]
    for actions in schedule.stages[1:]:
        split_actions: list[Action] = []
        owed: list[int] = []
        for action in actions:
            if action.kind != BACKWARD:
                split_actions.append(action)
                continue
            split_actions.append(Action(INPUT, action.microbatch))
            owed.append(action.microbatch)
            if len(owed) > delay:
                split_actions.append(Action(WEIGHT, owed.pop(0)))
        stages.append((*split_actions, *[Action(WEIGHT, number) for number in owed]))
    return Schedule(tuple(stages))


def check(stages: Sequence[Sequence[Action]]) -> None:
    """Raise unless every stage does each action once, in an order that does not deadlock."""
    if not stages or not stages[0]:
        raise ValueError("a schedule needs at least one stage, and each stage at least one micro-batch")
    microbatches = {action.microbatch for action in stages[0]}
    if microbatches != set(range(len(microbatches))):
        raise ValueError(f"stage 0 has the micro-batches {sorted(microbatches)}; number them from 0, without a gap")
    for stage, actions in enumerate(stages):
        _check_stage(stage, actions, microbatches)
    _check_order(stages)


def _check_stage(stage: int, actions: Sequence[Action], microbatches: set[int]) -> None:
    place: dict[Action, int] = {}
    for number, action in enumerate(actions):
        if action in place:
            raise ValueError(f"stage {stage} has {action} twice")
        if action.microbatch not in microbatches:
            raise ValueError(f"stage {stage} has {action}, stage 0 has {len(microbatches)} micro-batches, from 0")
        place[action] = number
    for number in sorted(microbatches):
        chain = [Action(FORWARD, number), Action(INPUT, number), Action(WEIGHT, number)]
        whole = Action(BACKWARD, number)
        if whole in place:
            if chain[1] in place or chain[2] in place:
                raise ValueError(f"stage {stage} has {whole}, and a part of it beside; give B, or I and W")
            chain[1:] = [whole]
        for action in chain:
            if action not in place:
                raise ValueError(f"stage {stage} has no {action}; every micro-batch needs F, and then B or I and W")
        for before, after in pairwise(chain):
            if place[before] > place[after]:
                raise ValueError(f"stage {stage} has {after} before {before}")


def _check_order(stages: Sequence[Sequence[Action]]) -> None:
    """Run all stages as far as they can. Checking neighbours is enough: edges to distant stages wait for no more."""
    last = len(stages) - 1
    upcoming = [0] * len(stages)
    forwards: list[set[int]] = [set() for _ in stages]
    backwards: list[set[int]] = [set() for _ in stages]
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(stages):
            while upcoming[stage] < len(actions):
                action = actions[upcoming[stage]]
                if action.kind == FORWARD and stage > 0 and action.microbatch not in forwards[stage - 1]:
                    break
                if action.sends_back and stage < last and action.microbatch not in backwards[stage + 1]:
                    break
                if action.kind == FORWARD:
                    forwards[stage].add(action.microbatch)
                elif action.sends_back:
                    backwards[stage].add(action.microbatch)
                upcoming[stage] += 1
                moved = True
    stuck = [
        f"stage {s} at {actions[at]}"
        for s, (actions, at) in enumerate(zip(stages, upcoming, strict=True))
        if at < len(actions)
    ]
    if stuck:
        raise ValueError(f"stages wait for each other in a circle: {', '.join(stuck)}")
