"""Which gradients to send together, and by which codec and primitive. A plan is data, made from a profile. Pure.

Tensors are in the order in which gradients become ready, which DDP learns in its first pass. Where some parameters get
no gradient, DDP keeps to the reverse order of definition, and so does the plan.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path

from thinwire import artifacts
from thinwire.checked import strictly
from thinwire.gradients.algorithms import (
    ALL_REDUCE,
    AUTO,
    EXPECTED_SHARES,
    LEAST_GAIN,
    MILDEST_FIRST,
    NONE,
    algorithm,
)
from thinwire.gradients.costs import READY, Profile, routes_of
from thinwire.gradients.cupcake import equal_counts, fuse, layer_wise, one_group
from thinwire.gradients.timeline import Route, Timeline, replay

FORMAT, VERSION = "thinwire-gradients-plan", 1
CUPCAKE, LAYER_WISE, ONE_GROUP, EQUAL = "cupcake", "layer-wise", "one", "equal"
USUAL = (ONE_GROUP, LAYER_WISE, f"{EQUAL}:2", f"{EQUAL}:4", f"{EQUAL}:8")
MILD = MILDEST_FIRST[1]  # codecs that lose nothing, or next to nothing
DDP_MIB = (1, 25)  # DDP's default bucket sizes: the first bucket, and all others


@dataclass(frozen=True)
class PlannedGroup:
    """Parameters whose gradients travel in one message."""

    names: tuple[str, ...]
    codec: str
    primitive: str
    nbytes: int  # of one rank's payload


@dataclass(frozen=True)
class Prediction:
    """How long a step is predicted to take, and the timeline of its groups, in seconds since backward began."""

    step_s: float
    backward_s: float  # until gradients are averaged on all ranks
    gap_s: float = 0.0  # no other plan of these codecs is better by more than this
    groups: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True)
class Plan:
    """Groups of parameters, and how each is sent.

    `alternatives` are the predicted seconds a step of other plans, by name. Where `auto` has chosen lossy codecs,
    `rivals` are those of the same groups by the milder codecs that the run may fall back to.
    """

    world_size: int
    sizes: Mapping[str, int]  # values of every parameter, by name; they identify the model
    groups: tuple[PlannedGroup, ...]
    order: str = READY
    feedback: bool = True
    momentum: float = 0.9  # dgc's
    warm_up_steps: int = 0  # dgc's
    seed: int = 0
    predicted: Prediction | None = None
    alternatives: Mapping[str, float] = field(default_factory=dict)
    rivals: Mapping[str, float] = field(default_factory=dict)

    def check(self, sizes: Mapping[str, int], world_size: int) -> None:
        """Raise if the plan was made for another model or number of ranks."""
        if world_size != self.world_size:
            raise ValueError(
                f"the plan was made for {self.world_size} ranks, this run has {world_size}; profile and plan again"
            )
        odd = sorted(set(sizes) ^ set(self.sizes)) or [name for name in sizes if sizes[name] != self.sizes[name]]
        if odd:
            here, there = (str(known.get(odd[0], "none")) for known in (sizes, self.sizes))
            raise ValueError(
                f"the plan was made for another model: {odd[0]} has {here} values to train here and {there} in the "
                f"plan ({len(odd)} such parameters); profile and plan again"
            )

    def write(self, path: Path) -> None:
        artifacts.write_sealed(path, {"format": FORMAT, "version": VERSION, **asdict(self)})

    @staticmethod
    def read(path: Path) -> "Plan":
        content = artifacts.read_sealed(path, FORMAT, VERSION)
        try:
            return strictly(content, Plan)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; profile and plan again") from None


def plan(
    profile: Profile,
    codec: str = "auto",
    *,
    fusion: str = CUPCAKE,
    feedback: bool = True,
    momentum: float = 0.9,
    warm_up_steps: int = 0,
    seed: int = 0,
) -> Plan:
    """The best grouping and routes by what the profile has measured; or one of the usual groupings, to compare with.

    `codec` is one of `algorithms`, several separated by commas, or auto, which takes a lossier codec only where it is
    expected to make LEAST_GAIN times the progress in the same time. `fusion` is cupcake (optimal), layer-wise, one, or
    equal:GROUPS.
    """

    def of(specs: Sequence[str]) -> Plan:
        return _plan(profile, specs, fusion, feedback, momentum, warm_up_steps, seed)

    specs = AUTO if codec == "auto" else tuple(codec.split(","))
    alternatives = _alternatives(profile, specs, feedback) if fusion == CUPCAKE else {}
    if codec != "auto":
        return replace(of(specs), alternatives=alternatives)
    chosen, *coarser = [of(specs) for specs in MILDEST_FIRST]
    # If the step without a codec were predicted too slow, codecs would seem to gain what they do not. So the prediction
    # is bounded by the plain step that was measured.
    chosen_s = _at_most(_step_s(chosen), profile.plain_step_s)
    for plan in coarser:
        as_much_s = _step_s(plan) / expected_share(plan)  # to make the progress of an uncompressed step
        if as_much_s * LEAST_GAIN <= chosen_s:
            chosen, chosen_s = plan, as_much_s
    chosen = replace(chosen, alternatives=alternatives)
    if all(group.codec in MILD for group in chosen.groups):
        return chosen
    rivals = {spec: predict(profile, _all_by(chosen, spec)).step_s for spec in MILD}
    return replace(chosen, rivals=rivals | {NONE: _at_most(rivals[NONE], profile.plain_step_s)})


def _plan(
    profile: Profile,
    specs: Sequence[str],
    fusion: str,
    feedback: bool,
    momentum: float,
    warm_up_steps: int,
    seed: int,
) -> Plan:
    routes = routes_of(profile, specs, feedback=feedback)
    names = [tensor.name for tensor in profile.tensors]
    backward_s = [tensor.backward_s for tensor in profile.tensors]
    if fusion == CUPCAKE:
        ends, chosen, gap_s = _best(backward_s, [route for _, _, route in routes])
    else:
        ends, gap_s = _fixed(fusion, len(names)), 0.0
        chosen = _best_uniform(backward_s, [route for _, _, route in routes], ends)
    timeline = replay(backward_s, [route for _, _, route in routes], ends, chosen, predict=True)
    groups = []
    for (begin, end), route in zip(pairwise([0, *ends]), chosen, strict=True):
        spec, primitive, costs = routes[route]
        groups.append(PlannedGroup(tuple(names[begin:end]), spec, primitive, math.ceil(sum(costs.nbytes[begin:end]))))
    return Plan(
        world_size=profile.world_size,
        sizes={tensor.name: tensor.num_values for tensor in profile.tensors},
        groups=tuple(groups),
        order=profile.order,
        feedback=feedback,
        momentum=momentum,
        warm_up_steps=warm_up_steps,
        seed=seed,
        predicted=_predicted(profile, timeline, gap_s),
    )


def expected_share(plan: Plan) -> float:
    """The share of an uncompressed step's progress that a plan of `auto`'s codecs is expected to make."""
    shares = [(sum(plan.sizes[name] for name in group.names), EXPECTED_SHARES[group.codec]) for group in plan.groups]
    return sum(values * share for values, share in shares) / sum(plan.sizes.values())


def _at_most(predicted_s: float, measured_s: float | None) -> float:
    return predicted_s if measured_s is None else min(predicted_s, measured_s)


def _step_s(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.step_s


def _all_by(plan: Plan, spec: str) -> Plan:
    return replace(plan, groups=tuple(replace(group, codec=spec, primitive=ALL_REDUCE) for group in plan.groups))


def _best(backward_s: Sequence[float], routes: Sequence[Route]) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    """Cupcake's plan, and at most how far it is from the best plan of Cupcake's model.

    The prediction also counts how messages and backward slow each other down. The model that is solved exactly does
    not. Where one of the usual plans is predicted to be faster, that one is taken.
    """
    fusion = fuse(backward_s, routes)
    count = len(backward_s)
    usual = dict.fromkeys(_fixed(name, count) for name in USUAL)
    options = [(fusion.ends, fusion.chosen), *((ends, _best_uniform(backward_s, routes, ends)) for ends in usual)]
    ends, chosen = min(options, key=lambda option: replay(backward_s, routes, *option, predict=True).seconds)
    beyond_s = replay(backward_s, routes, ends, chosen).seconds - replay(backward_s, routes, *options[0]).seconds
    return ends, chosen, fusion.gap_s + max(0.0, beyond_s)


def predict(profile: Profile, plan: Plan) -> Prediction:
    """How long a plan's steps would take by another profile of the same model, for instance a later one."""
    plan.check({tensor.name: tensor.num_values for tensor in profile.tensors}, profile.world_size)
    by_name = {tensor.name: tensor for tensor in profile.tensors}
    tensors = tuple(by_name[name] for group in plan.groups for name in group.names)
    specs = tuple(dict.fromkeys(group.codec for group in plan.groups))
    routes = routes_of(replace(profile, tensors=tensors), specs, feedback=plan.feedback)
    numbers = {(spec, primitive): number for number, (spec, primitive, _) in enumerate(routes)}
    ends = list(accumulate(len(group.names) for group in plan.groups))
    chosen = [numbers[group.codec, group.primitive] for group in plan.groups]
    backward_s = [tensor.backward_s for tensor in tensors]
    return _predicted(profile, replay(backward_s, [route for _, _, route in routes], ends, chosen, predict=True), 0.0)


def ddp_ends(sizes: Sequence[int]) -> tuple[int, ...]:
    """Where the buckets of plain DDP end, once it has learnt the order."""
    ends: list[int] = []
    filled = 0
    for number, size in enumerate(sizes):
        filled += 4 * size
        if filled >= DDP_MIB[bool(ends)] * 1024**2:
            ends.append(number + 1)
            filled = 0
    return tuple(dict.fromkeys([*ends, len(sizes)]))


def _fixed(fusion: str, count: int) -> tuple[int, ...]:
    name, _, groups = fusion.partition(":")
    if name == LAYER_WISE:
        return layer_wise(count)
    if name == ONE_GROUP:
        return one_group(count)
    if name == EQUAL and groups.isdigit() and int(groups) > 0:
        return equal_counts(count, int(groups))
    raise ValueError(f"fusion is {fusion!r}; give {CUPCAKE}, {LAYER_WISE}, {ONE_GROUP} or {EQUAL}:GROUPS")


def _best_uniform(backward_s: Sequence[float], routes: Sequence[Route], ends: Sequence[int]) -> tuple[int, ...]:
    """The best plan with these ends and one route for all groups."""
    options = [(route,) * len(ends) for route in range(len(routes))]
    return min(options, key=lambda chosen: replay(backward_s, routes, ends, chosen, predict=True).seconds)


def _alternatives(profile: Profile, specs: Sequence[str], feedback: bool) -> dict[str, float]:
    """The predicted seconds a step of the usual plans, by name."""
    step_s = {}
    sizes = [tensor.num_values for tensor in profile.tensors]
    backward_s = [tensor.backward_s for tensor in profile.tensors]
    for spec in (NONE, "bfloat16"):
        [(_, _, route)] = routes_of(profile, (spec,), feedback=feedback)
        ends = ddp_ends(sizes)
        step_s[spec] = profile.rest_s + replay(backward_s, [route], ends, [0] * len(ends), predict=True).seconds
    routes = [
        route for spec, _, route in routes_of(profile, specs, feedback=feedback) if algorithm(spec).codec is not None
    ]
    for fusion in (LAYER_WISE, ONE_GROUP) if routes else ():
        ends = _fixed(fusion, len(sizes))
        chosen = _best_uniform(backward_s, routes, ends)
        step_s[fusion] = profile.rest_s + replay(backward_s, routes, ends, chosen, predict=True).seconds
    return step_s


def _predicted(profile: Profile, timeline: Timeline, gap_s: float) -> Prediction:
    groups = tuple(asdict(group) for group in timeline.groups)
    return Prediction(profile.rest_s + timeline.seconds, timeline.seconds, gap_s, groups)
