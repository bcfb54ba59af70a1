"""Checks before training that a model gives the same rows and gradients on parts of a graph as on the whole.

Each rank tries the model on a tiny graph in its own process. That takes a fraction of a second, and only the verdict is
sent.
"""

import warnings
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from thinwire.fullgraph import tiny
from thinwire.fullgraph.edges import Unsupported
from thinwire.fullgraph.tiny import NUM_NODES, NUM_PARTS, Given
from thinwire.fullgraph.trial import RELATIVE, SLACK, Differs, Replaced, Run, alike, furthest
from thinwire.graphs import Shard
from thinwire.links import Door

# A gradient must differ in each draw to be refused: near a kink (a ReLU's) rounding alone can change it in one draw.
DRAWS = 3
# A relative change of features, a hundred times float32's rounding. What it moves bounds what rounding can move.
NUDGE = 1e-5


def check(model: nn.Module, replaced: Sequence[Replaced], arguments: Given, shard: Shard, door: Door) -> None:
    """Refuse a model that is another in parts, with the same error on all ranks. The model stays as it is."""
    said, is_known = "", True
    try:
        said = difference(model, replaced, arguments, shard)
    except Unsupported as error:
        said = str(error)
    except Exception as error:  # a model that does not run on the tiny graph
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


def difference(model: nn.Module, replaced: Sequence[Replaced], arguments: Given, shard: Shard) -> str:
    """The first difference, as the text of an error; empty if there is none."""
    all_parts = tiny.parts(shard.x.device)
    wrong = ""
    for seed in range(DRAWS):
        whole = Run(model, all_parts[0])
        inputs, moved = (tiny.arguments(arguments, shard, all_parts, seed=seed, nudge=nudge) for nudge in (0.0, NUDGE))
        whole.go(replaced, inputs[0], seed)
        nudged = Run(model, all_parts[0]).go(replaced, moved[0], seed)
        runs = [Run(model, part, whole, nudged) for part in all_parts[1:]]
        for number, (run, inputs_of) in enumerate(zip(runs, inputs[1:], strict=True)):
            try:
                # Each rank has a random state of its own.
                run.go(replaced, inputs_of, 1 + seed + 100 * (1 + number))
            except Unsupported:
                raise
            except Differs as differs:
                run.found, run.is_wrong = run.found or differs, True
            except Exception as error:
                text = f"{run.where_it_stopped()} on a part: {type(error).__name__}: {error}"
                run.found, run.is_wrong = run.found or run.differs(text), True
        differences = [run.found for run in runs if run.found is not None]
        if any(run.is_wrong for run in runs) and differences:
            first = str(min(differences, key=lambda difference: difference.at))
            return _refusal(model, first, _chance(model, replaced, inputs[0], whole, nudged))
        for run in runs:
            if (name := run.buffer_that_differs()) is not None:
                return _refusal(model, f"its buffer {name} is another after a pass", "")
        wrong = _gradient_that_differs(whole, nudged, runs)
        if not wrong:
            return ""
    return _refusal(model, f"rows are the same, but the gradient of {wrong} is not", "")


def _chance(model: nn.Module, replaced: Sequence[Replaced], arguments: Given, whole: Run, nudged: Run) -> str:
    """Where the whole graph, run again with another seed, differs from itself; empty if it does not."""
    again = Run(model, whole.part, whole, nudged)
    try:
        again.go(replaced, arguments, 12345)
    except Differs as differs:
        return str(differs)
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
    """The first tensor of the backward pass whose gradients in parts don't add up to that of the whole graph."""
    gradients = [
        (
            f"what goes into {crossing.name}",
            crossing.gradient,
            nudged.crossings[at].gradient,
            [run.crossings[at].gradient for run in runs],
        )
        for at, crossing in reversed(list(enumerate(whole.crossings)))
    ]
    gradients += [
        (name, whole.gradients.get(name), nudged.gradients.get(name), [run.gradients.get(name) for run in runs])
        for name in dict.fromkeys(name for run in (whole, *runs) for name in run.gradients)
    ]
    largest = max((float(grad.abs().max()) for grad in whole.gradients.values() if grad.numel()), default=0.0)
    for name, right, moved, parts in gradients:
        grads = [grad for grad in parts if grad is not None]
        if right is None and not grads:
            continue
        total = torch.stack(grads).sum(0) if grads else torch.zeros_like(cast(Tensor, right))
        right = torch.zeros_like(total) if right is None else right
        # A gradient that would be zero but for rounding is as large as the rounding of the numbers it is summed from.
        noise = max([largest * NUDGE / 10, *(float(grad.abs().max()) * RELATIVE for grad in grads if grad.numel())])
        if not alike(total, right, (0.0 if moved is None else furthest(moved, right)) + noise / SLACK):
            return name
    return ""


def _first_said(door: Door, said: str) -> str:
    """The text of the first rank whose text is not empty, on all ranks."""
    return next(filter(None, door.gather_json(said, channel="check")), "")
