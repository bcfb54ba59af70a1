"""A stage's backward in two parts: gradients of its inputs first, those of its weights later.

The only file that knows torch's private names for it (torch.distributed.pipelining._backward, torch 2.13). Together the
parts cost 1.2 to 1.3 times what one backward does on a CPU (docs/pipelines.md). Hooks that wait for a weight's gradient
to be accumulated, like DDP's, are not called by the second part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


@dataclass
class Rest:
    """What is left to do after the first part. Keeps the activations that weights' gradients are made of."""

    groups: list[dict[str, Any]]


def backward_input(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[nn.Parameter]
) -> tuple[list[Tensor | None], Rest]:
    """Gradients of `inputs`, leaves that require them; None for one that the outputs do not depend on.

    Detaches the outputs, which must not be views. Weights behind an output that no input reaches get their gradients
    here: the second part starts from nodes that both weights and inputs lead to, and would not find them.
    """
    own = {id(each) for each in inputs}
    mixed: list[tuple[Tensor, Tensor]] = []
    for output, gradient in zip(outputs, gradients, strict=True):
        if own.isdisjoint(_leaves(output)):
            torch.autograd.backward([output], [gradient], retain_graph=True)
        else:
            mixed.append((output, gradient))
    if not mixed:
        return [None] * len(inputs), Rest([])
    made, groups = stage_backward_input([out for out, _ in mixed], [g for _, g in mixed], list(inputs), iter(weights))
    for each in inputs:
        each.grad = None  # where torch leaves a copy
    return list(made), Rest(groups)


def backward_weight(weights: Sequence[nn.Parameter], rest: Rest) -> None:
    """Gradients of the weights, added to what they have."""
    stage_backward_weight(iter(weights), rest.groups)


def _leaves(output: Tensor) -> set[int]:
    """Ids of the leaves that an output was made from."""
    found: set[int] = set()
    seen = {output.grad_fn}
    open_nodes = [output.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None:
            continue
        found.add(id(getattr(node, "variable", None)))
        for other, _ in node.next_functions:
            if other not in seen:
                seen.add(other)
                open_nodes.append(other)
    return found
