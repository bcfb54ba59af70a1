"""Which gradients to fuse, and by which route each group goes: Cupcake's fusion (MLSys 2023), solved exactly. Pure.

The model of time is `timeline`'s. A sweep over the tensors extends labels. A label at e is a plan for the first e
tensors, of whose times it keeps

    C = C' + b + h    D = max(C, D') + g    M = max(M', D) + d    Q = Q' + b + h + d

where ' marks the label that it extends. The best plan has the least max(M, Q) at the end. A label that another
undercuts in all four can't win. With one route C and Q only count groups, and labels stay few. With several routes
bounds (`blends`) keep them few. Where labels must be given up, `gap_s` says how much that may cost.
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

# The most labels at each tensor, and the share of the time within which labels count as equal. The scouts find good
# plans. Then sweeps of growing width prove that there is no better one.
SCOUTS = ((32, 1e-2), (32, 3e-3), (64, 1e-3), (64, 3e-4))
LONE_SCOUTS = ((4, 1e-5),)  # where there is one route only
WIDTH, LONE_WIDTH, WIDENING = 32, 128, 4
# With several routes the proof is given up after about this number of labels. With one route it is always completed.
LABELS = 10_000_000
# About the most labels in one sweep. Where there are millions of groups, sweeps keep fewer labels at each tensor.
SWEEP_LABELS = 4_000_000


@dataclass(frozen=True)
class Fusion:
    """Group j ends behind tensor number ends[j] and goes by routes[chosen[j]]. No plan is faster by more than `gap_s`.

    A plan of more than `most_groups` groups is no better; or it was not allowed, if the limit was `imposed`.
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
    """The fastest plan, or one proven to take at most a share `tolerance` longer."""
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
    """The best plan that was found, and a lower bound for all plans."""
    groups = Groups.all(model)
    best = best_usual(model, groups, most or model.num_tensors)
    blender = Blender(groups, best, model.parts_of(best), most)
    bound_s, num_labels = 0.0, 0
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
        num_labels += sweep.num_labels
        if best.seconds - bound_s <= max(tolerance, PROOF) * best.seconds:
            break
        if len(model.routes) > 1 and (
            num_labels > LABELS or (grain == ROUNDING and num_labels + WIDENING * sweep.num_labels > LABELS)
        ):
            break
    return best, bound_s


def _widths(num_routes: int) -> Iterator[tuple[int, float]]:
    yield from SCOUTS if num_routes > 1 else LONE_SCOUTS
    width = WIDTH if num_routes > 1 else LONE_WIDTH
    while True:
        yield width, ROUNDING
        width *= WIDENING
