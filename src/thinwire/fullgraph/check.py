"""Whether a model's rows in parts are those of the whole graph: tried on a tiny one, in this process, before it trains.

Each rank tries by itself, which takes a fraction of a second and sends nothing but the verdict.
"""

import warnings
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from thinwire.fullgraph import tiny
from thinwire.fullgraph.edges import Unsupported
from thinwire.fullgraph.tiny import NUM_NODES, NUM_PARTS, Given
from thinwire.fullgraph.trial import RELATIVE, SLACK, Differs, Own, Run, alike, furthest
from thinwire.graphs import Shard
from thinwire.links import Door

DRAWS = 3  # a gradient that differs must do so each time: a kink that rounding falls on either side of does not
NUDGE = 1e-5  # of features: a hundred times float32's rounding; what it moves says how far rounding may


def check(model: nn.Module, own: Sequence[Own], given: Given, shard: Shard, door: Door) -> None:
    """Refuse a model that is another in parts, by the same words on every rank. It stays as it is."""
    said, is_known = "", True
    try:
        said = difference(model, own, given, shard)
    except Unsupported as error:
        said = str(error)
    except Exception as error:  # a model that needs more than a tiny graph
        said, is_known = f"{type(error).__name__}: {error}", False
    refusals, doubts = (_first_said(door, said if is_known is known else "") for known in (True, False))
    if refusals:
        raise Unsupported(refusals)
    if doubts:
        warnings.warn(
            f"{type(model).__name__} could not be tried on a graph of {NUM_NODES} nodes ({doubts}), so it is not known "
            "whether it is the same in parts; check=False (--no-check) leaves this out",
            RuntimeWarning,
            stacklevel=2,
        )


def difference(model: nn.Module, own: Sequence[Own], given: Given, shard: Shard) -> str:
    """In words; nothing if there is none."""
    all_parts = tiny.parts(shard.x.device)
    wrong = ""
    for seed in range(DRAWS):
        whole = Run(model, all_parts[0])
        inputs, moved = (tiny.arguments(given, shard, all_parts, seed=seed, nudge=nudge) for nudge in (0.0, NUDGE))
        whole.go(own, inputs[0], seed)
        nudged = Run(model, all_parts[0]).go(own, moved[0], seed)
        runs = [Run(model, part, whole, nudged) for part in all_parts[1:]]
        for number, (run, inputs_of) in enumerate(zip(runs, inputs[1:], strict=True)):
            try:
                # Chance is another on each rank.
                run.go(own, inputs_of, 1 + seed + 100 * (1 + number))
            except Unsupported:
                raise
            except Differs as differs:
                run.found, run.is_wrong = run.found or differs, True
            except Exception as error:
                text = f"{run.where_it_stopped()} on a part: {type(error).__name__}: {error}"
                run.found, run.is_wrong = run.found or run.differs(text), True
        found = [run.found for run in runs if run.found is not None]
        if any(run.is_wrong for run in runs) and found:
            first = str(min(found, key=lambda each: each.at))
            return _refusal(model, first, _chance(model, own, inputs[0], whole, nudged))
        for run in runs:
            if (name := run.buffer_that_differs()) is not None:
                return _refusal(model, f"its buffer {name} is another after a pass", "")
        wrong = _gradient_that_differs(whole, nudged, runs)
        if not wrong:
            return ""
    return _refusal(model, f"rows are the same, but the gradient of {wrong} is not", "")


def _chance(model: nn.Module, own: Sequence[Own], given: Given, whole: Run, nudged: Run) -> str:
    """Where random numbers are drawn that make the whole graph differ from itself; nothing where there are none."""
    again = Run(model, whole.part, whole, nudged)
    try:
        again.go(own, given, 12345)
    except Differs as found:
        return str(found)
    return str(again.found) if again.found is not None and again.is_wrong else ""


def _refusal(model: nn.Module, where: str, chance: str) -> str:
    kind = type(model).__name__
    if chance:
        return (
            f"{kind} draws random numbers of its own: the same graph gives other rows each time ({chance}), so ranks "
            "would differ by chance. Use nn.Dropout, whose masks follow the nodes, or draw them from what a node has; "
            "check=False (--no-check) trains it as it is"
        )
    return (
        f"{kind} is another model in parts: on a graph of {NUM_NODES} nodes in {NUM_PARTS} parts, {where}. A rank has "
        "its own nodes only, so sums, norms, orders and attention over all nodes see a part of them. Let rows come "
        "from a node and, by message passing layers, its neighbours; BatchNorm has statistics of the whole graph. "
        "check=False (--no-check) trains it as it is"
    )


def _gradient_that_differs(whole: Run, nudged: Run, runs: Sequence[Run]) -> str:
    """The first thing on the way back to which the parts' gradients don't add up as the whole's do."""
    found = [
        (
            f"what goes into {each.name}",
            each.gradient,
            nudged.crossings[at].gradient,
            [r.crossings[at].gradient for r in runs],
        )
        for at, each in reversed(list(enumerate(whole.crossings)))
    ]
    found += [
        (name, whole.gradients.get(name), nudged.gradients.get(name), [run.gradients.get(name) for run in runs])
        for name in dict.fromkeys(name for run in (whole, *runs) for name in run.gradients)
    ]
    largest = max((float(each.abs().max()) for each in whole.gradients.values() if each.numel()), default=0.0)
    for name, right, moved, parts in found:
        grads = [each for each in parts if each is not None]
        if right is None and not grads:
            continue
        total = torch.stack(grads).sum(0) if grads else torch.zeros_like(cast(Tensor, right))
        right = torch.zeros_like(total) if right is None else right
        # One that is zero but for rounding has the size of what it was rounded from.
        noise = max([largest * NUDGE / 10, *(float(each.abs().max()) * RELATIVE for each in grads if each.numel())])
        if not alike(total, right, (0.0 if moved is None else furthest(moved, right)) + noise / SLACK):
            return name
    return ""


def _first_said(door: Door, said: str) -> str:
    """What the first rank with something to say says, on all ranks."""
    return next(filter(None, door.gather_json(said, channel="check")), "")
