"""Which gradients to fuse, and by which route each group goes: Cupcake's fusion (MLSys 2023), solved exactly. Pure.

Times are `timeline`'s. Labels sweep over the tensors. One at e stands for a plan of the first e of them,

    C = C' + b + h    D = max(C, D') + g    M = max(M', D) + d    Q = Q' + b + h + d

and at the end max(M, Q) is least. A label that another undercuts in all four can't win. With one route C and Q only
count groups, and labels stay few. With several they may not; then bounds (`blends`) keep them few, and where labels are
given up the gap is said.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinwire.gradients.blends import Blender
from thinwire.gradients.groupings import (
    PROOF,
    ROUNDING,
    Grouping,
    Groups,
    Model,
    best_usual,
    equal_counts,
    layer_wise,
    one_group,
)
from thinwire.gradients.labels import sweep_labels
from thinwire.gradients.timeline import Route, replay, require_model

__all__ = ["Fusion", "equal_counts", "fuse", "layer_wise", "one_group"]

# Labels a state may keep, and the share of the time within which they are alike: first to find good plans, then, ever
# more of them, to prove that there is no better one.
SCOUTS = ((32, 1e-2), (32, 3e-3), (64, 1e-3), (64, 3e-4))
LONE_SCOUTS = ((4, 1e-5),)  # with one route
WIDTH, LONE_WIDTH, WIDENING = 32, 128, 4
# Labels made before several routes are given up as too many to prove. One route is seen through.
LABELS = 10_000_000
# Labels that one sweep may make, about: where there are millions of groups, its scouts keep fewer at each tensor.
SWEEP_LABELS = 4_000_000


@dataclass(frozen=True)
class Fusion:
    """Group j ends behind tensor number ends[j] and goes by routes[chosen[j]]; no plan saves more than `gap_s`.

    A plan of more than `most_groups` groups is no better, or not allowed: it was `imposed`.
    """

    ends: tuple[int, ...]
    chosen: tuple[int, ...]
    seconds: float
    gap_s: float
    most_groups: int
    imposed: bool


def fuse(
    backward_s: Sequence[float], routes: Sequence[Route], *, most_groups: int | None = None, tolerance: float = 0.0
) -> Fusion:
    """The plan that takes least, or at most a share `tolerance` more: it stops as soon as that is proven."""
    require_model(backward_s, routes)
    if most_groups is not None and most_groups < 1:
        raise ValueError(f"most_groups is {most_groups}; give at least 1, or None for as many as pay")
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}; give a share of the time, 0 or more")
    model = Model(backward_s, routes)
    best, bound_s = _solve(model, most_groups, tolerance)
    seconds = replay(backward_s, routes, best.ends, best.chosen).seconds
    gap_s = max(0.0, seconds - bound_s) if bound_s < best.seconds * (1 - PROOF) else 0.0
    most = most_groups or model.most_groups(seconds)
    return Fusion(best.ends, best.chosen, seconds, gap_s, most, most_groups is not None)


def _solve(model: Model, most: int | None, tolerance: float) -> tuple[Grouping, float]:
    """The best plan that was found, and what none can undercut."""
    groups = Groups.all(model)
    best = best_usual(model, groups, most or model.num_tensors)
    blender = Blender(groups, best, model.parts_of(best), most)
    bound_s, made = 0.0, 0
    for width, grain in _widths(len(model.routes)):
        groups, best = blender.improve(groups, best)
        bound_s = max(bound_s, min(blender.bound_s, best.seconds))
        if not len(groups.start):
            return best, best.seconds
        if best.seconds - bound_s <= max(tolerance, PROOF) * best.seconds:
            break
        if len(model.routes) > 1:
            width = min(width, max(1, SWEEP_LABELS // len(groups.start)))
        sweep = sweep_labels(groups, [*blender.chosen(), *blender.corners], best, width, grain, most)
        best = sweep.best
        bound_s = max(bound_s, sweep.bound_s)
        made += sweep.num_labels
        if best.seconds - bound_s <= max(tolerance, PROOF) * best.seconds:
            break
        if len(model.routes) > 1 and (
            made > LABELS or (grain == ROUNDING and made + WIDENING * sweep.num_labels > LABELS)
        ):
            break
    return best, bound_s


def _widths(num_routes: int) -> Iterator[tuple[int, float]]:
    yield from SCOUTS if num_routes > 1 else LONE_SCOUTS
    width = WIDTH if num_routes > 1 else LONE_WIDTH
    while True:
        yield width, ROUNDING
        width *= WIDENING
