"""Which codec for gradients that share the wires with other messages: recorded steps are replayed with each. Pure.

Halo rows, or rows of features, are under way when gradients are sent, or wait behind them. What a codec saves is
therefore not its own time on the wire: an epoch that waits for halo rows anyway may gain nothing. So the whole step is
replayed (`links/replay.py`) with the messages of each codec in place of those in float32, and its computation between
them. The rule is that of `planning.plan`: a lossier codec must be expected to make LEAST_GAIN times the progress in the
same time (decision 18). Codecs of fewer than four bits are not among the choices: the optimizers of training on graphs
divide by the size of gradients, and with sign and top-k wide layers lost 7 to 28 points (decision 23).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from thinwire.gradients.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    DENSE,
    LEAST_GAIN,
    NONE,
    algorithm,
)
from thinwire.gradients.planning import MILD, Plan, PlannedGroup, Prediction
from thinwire.gradients.sent import Message, flags_message, group_messages, primitive_of
from thinwire.links.cost import CostModel
from thinwire.links.replay import replay
from thinwire.links.script import COMPUTE, POST, WAIT, Operation, Script, Step

CHANNEL = "gradients"
# The choices, from mild to lossy, and the share of an uncompressed step's progress that a step by each makes.
SHARES = {NONE: 1.0, "bfloat16": 1.0, "uniform:8": 1.0, "uniform:4": 0.96}
CODECS = tuple(spec for spec in SHARES if spec != NONE)
RUNGS = ((NONE,), (NONE, "bfloat16"), tuple(SHARES))


@dataclass(frozen=True)
class CodecSeconds:
    """A rank's processor time for each value: to encode it, to add a payload's, to decode one."""

    encode_s: float = 0.0
    add_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class Measured:
    """What of a run's gradients a choice needs: tensors' sizes by group, as sent, and what each codec costs."""

    groups: Sequence[Sequence[int]]
    codecs: Mapping[str, CodecSeconds]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Measured":
        codecs = {spec: CodecSeconds(**seconds) for spec, seconds in content["codecs"].items()}
        return Measured(content["groups"], codecs)


@dataclass(frozen=True)
class Choice:
    """A codec, why, and the predicted seconds of a step by each one that was considered."""

    codec: str
    why: str
    step_s: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"codec": self.codec, "why": self.why, "predicted_step_s": dict(self.step_s)}


def choose(
    scripts: Sequence[Script],
    weights: Sequence[float],
    cost: CostModel,
    measured: Measured,
    *,
    cores: int | None,
    measured_s: float | None = None,
) -> Choice:
    """The codec for all groups, from every rank's script of steps that sent gradients in float32.

    `weights` are the steps' shares in the mean. `measured_s` is a step as it was measured, where these are its wires:
    float32 is no slower than that.
    """

    def step_s(codec: str) -> float:
        replayed = replay(with_codec(scripts, measured, codec), cost, cores=cores)
        return sum(seconds * weight for seconds, weight in zip(replayed, weights, strict=True)) / sum(weights)

    none_s = step_s(NONE)
    if measured_s is not None:
        none_s = min(none_s, measured_s)
    free_s = min(none_s, step_s(""))
    if free_s * LEAST_GAIN > none_s:
        saved = 1 - free_s / none_s if none_s else 0.0
        return Choice(
            NONE,
            f"without gradients a step would take {saved:.0%} less: too little for a codec",
            {"": free_s, NONE: none_s},
        )
    seconds = {NONE: none_s} | {spec: step_s(spec) for spec in measured.codecs if spec != NONE}
    chosen, chosen_s = NONE, none_s
    for specs in RUNGS:
        known = [spec for spec in specs if spec in seconds]
        best = min(known, key=lambda spec: seconds[spec] / SHARES[spec])
        as_much_s = seconds[best] / SHARES[best]  # to make the progress of an uncompressed step
        if as_much_s * LEAST_GAIN <= chosen_s:
            chosen, chosen_s = best, as_much_s
    if chosen == NONE:
        return Choice(NONE, "no codec is expected to make a tenth more progress in the same time", seconds)
    why = (
        f"a step is predicted to take {1e3 * seconds[chosen]:.1f} ms instead of {1e3 * none_s:.1f}, and to make "
        f"{SHARES[chosen]:.0%} of its progress"
    )
    return Choice(chosen, why, seconds)


def plan_of(choice: Choice, groups: Sequence[Sequence[tuple[str, int]]], world_size: int, seed: int) -> Plan:
    """The choice as a plan, by which a run judges what its codec achieves (`verdict.py`)."""
    chosen = algorithm(choice.codec)
    planned = []
    for group in groups:
        sizes = [size for _, size in group]
        primitive = ALL_REDUCE if chosen.codec is None else primitive_of(chosen, sizes, world_size)
        nbytes = sum(group_messages(sizes, choice.codec, world_size, 0)[0].bytes_to.values())
        planned.append(PlannedGroup(tuple(name for name, _ in group), choice.codec, primitive, nbytes))
    rivals = {spec: choice.step_s[spec] for spec in MILD if spec in choice.step_s} if choice.codec not in MILD else {}
    return Plan(
        world_size,
        {name: size for group in groups for name, size in group},
        tuple(planned),
        seed=seed,
        predicted=Prediction(choice.step_s[choice.codec], 0.0),
        rivals=rivals,
    )


def with_codec(scripts: Sequence[Script], measured: Measured, codec: str) -> list[Script]:
    """The scripts with gradients by this codec instead of float32; by "" none are sent."""
    if codec == NONE:
        return list(scripts)
    return [_by(script, measured, codec, len(scripts), rank) for rank, script in enumerate(scripts)]


def bytes_of(scripts: Sequence[Script], weights: Sequence[float]) -> int:
    """Mean bytes that all ranks send in a step."""
    total = 0.0
    for script in scripts:
        for steps, weight in zip(script.epochs, weights, strict=True):
            posted = [name for kind, _, name in steps if kind == POST]
            total += weight * sum(sum(script.operations[name].bytes_to.values()) for name in posted)
    return int(total / sum(weights))


def _by(script: Script, measured: Measured, codec: str, n: int, rank: int) -> Script:
    operations = {name: operation for name, operation in script.operations.items() if not _is_gradient(name)}
    rewritten: dict[str, tuple[list[Step], list[Step]]] = {}
    for name in script.operations:
        if not _is_gradient(name):
            continue
        posts: list[Step] = []
        waits: list[Step] = []
        if codec:
            number = (int(name.rpartition("/")[2]) - 1) % len(measured.groups)
            sent, posts, waits = _group(name, measured, codec, number, n, rank)
            operations |= sent
        rewritten[name] = posts, waits
    epochs = [
        [
            new
            for step in steps
            for new in ((step,) if step[2] not in rewritten else rewritten[step[2]][step[0] == WAIT])
        ]
        for steps in script.epochs
    ]
    return replace(script, epochs=epochs, operations=operations)


def _is_gradient(name: str) -> bool:
    return name.rpartition("/")[0] == CHANNEL


def _group(
    name: str, measured: Measured, codec: str, number: int, n: int, rank: int
) -> tuple[dict[str, Operation], list[Step], list[Step]]:
    """What this rank sends of a group, and its steps in place of posting the group's sum and of waiting for it."""
    sizes = measured.groups[number]
    values, seconds, chosen = sum(sizes), measured.codecs[codec], algorithm(codec)
    first, *second = group_messages(sizes, codec, n, rank)
    operations = {f"{name}.0": _operation(first)}
    posts: list[Step] = [(COMPUTE, values * seconds.encode_s, ""), (POST, 0.0, f"{name}.0")]
    waits: list[Step] = [(WAIT, 0.0, f"{name}.0")]
    flags = flags_message(measured.groups, codec, n, rank)
    if flags is not None and number == len(measured.groups) - 1:
        operations[f"{name}.reached"] = _operation(flags)
        posts.append((POST, 0.0, f"{name}.reached"))
        waits.append((WAIT, 0.0, f"{name}.reached"))
    if second:
        operations[f"{name}.1"] = _operation(second[0])
        between_s = values * seconds.add_s + values / n * seconds.encode_s
        waits += [(COMPUTE, between_s, ""), (POST, 0.0, f"{name}.1"), (WAIT, 0.0, f"{name}.1")]
    gathers = codec not in DENSE and primitive_of(chosen, sizes, n) == ALL_GATHER
    waits.append((COMPUTE, values * (n * seconds.add_s if gathers else seconds.decode_s), ""))
    return operations, posts, waits


def _operation(message: Message) -> Operation:
    return Operation(message.kind, message.bytes_to)
