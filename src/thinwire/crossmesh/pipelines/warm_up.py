"""How deep a pipeline's warm-up may be under a memory budget: between 1F1B and eager-1F1B, by simulated time. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.crossmesh.pipelines.schedule import Schedule, deep, shallow, split, warmed_up
from thinwire.crossmesh.pipelines.simulator import Costs, simulate
from thinwire.crossmesh.pipelines.timeline import Timeline


@dataclass(frozen=True)
class WarmUp:
    """Forwards before the first backward, by stage; the schedule that follows, and its simulated timeline."""

    depths: tuple[int, ...]
    schedule: Schedule
    timeline: Timeline


def warm_up_under(
    budget_bytes: Sequence[int], costs: Costs, num_microbatches: int, *, weight_delay: bool = True
) -> WarmUp:
    """The fastest depths whose activations stay within budget_bytes[i] on stage i; of equally fast ones, the smallest.

    Raises if even 1F1B does not fit, and says on which stage and how many bytes it needs.
    """
    n = len(costs.stages)
    if len(budget_bytes) != n:
        raise ValueError(f"{len(budget_bytes)} budgets for {n} stages; give one for each")
    least = shallow(n, num_microbatches)
    for stage, (budget, depth, cost) in enumerate(zip(budget_bytes, least, costs.stages, strict=True)):
        if depth * cost.activation_bytes > budget:
            raise ValueError(
                f"stage {stage}: 1F1B keeps {depth} activations of {cost.activation_bytes:,} bytes, the budget is "
                f"{budget:,}; give {depth * cost.activation_bytes:,} bytes, smaller micro-batches or fewer stages"
            )
    deepest = _tried(_largest(budget_bytes, costs, num_microbatches), num_microbatches, costs, weight_delay)
    return _trimmed(deepest, least, num_microbatches, costs, weight_delay)


def _largest(budget_bytes: Sequence[int], costs: Costs, num_microbatches: int) -> tuple[int, ...]:
    """As deep as memory and eager-1F1B allow. Depths must not rise, so a stage with little memory limits later ones."""
    depths: list[int] = []
    for wanted, budget, cost in zip(deep(len(costs.stages), num_microbatches), budget_bytes, costs.stages, strict=True):
        fits = budget // cost.activation_bytes if cost.activation_bytes else wanted
        depths.append(min([wanted, fits, *depths[-1:]]))
    return tuple(depths)


def _trimmed(best: WarmUp, least: Sequence[int], num_microbatches: int, costs: Costs, weight_delay: bool) -> WarmUp:
    """Reduce depths one at a time as long as it costs no time: saves memory for free."""
    shallower = True
    while shallower:
        shallower = False
        for stage, depth in enumerate(best.depths):
            behind = best.depths[stage + 1] if stage + 1 < len(best.depths) else 0
            if depth - 1 < max(least[stage], behind):
                continue
            depths = (*best.depths[:stage], depth - 1, *best.depths[stage + 1 :])
            candidate = _tried(depths, num_microbatches, costs, weight_delay)
            # The tolerance is needed because times are summed in another order.
            if candidate.timeline.seconds <= best.timeline.seconds * (1 + 1e-9):
                best, shallower = candidate, True
    return best


def _tried(depths: tuple[int, ...], num_microbatches: int, costs: Costs, weight_delay: bool) -> WarmUp:
    schedule = warmed_up(depths, num_microbatches)
    if weight_delay:
        schedule = split(schedule)
    return WarmUp(depths, schedule, simulate(schedule, costs))
