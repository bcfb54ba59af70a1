"""A stage's backward in two parts: gradients of its inputs first, gradients of linear layers' weights later.

Inside `deferring`, the backward of a linear layer only records what its weights' gradients are computed from; `finish`
computes them. So both parts together do the work of one backward, no more. (torch's own method, two walks over the
graph, costs 1.2 to 1.3 times as much.) Other weights, of norms and embeddings, get their gradients in the first part:
they are a hundredth of the work. So do the weights of linear layers with hooks, which only autograd's own pass calls.
(Hooks on a weight's AccumulateGrad node, such as DDP's, can't be seen from here; the second part doesn't call them.)
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_plain = functional.linear
_here = threading.local()


@dataclass
class Rest:
    """What is left for the second part: for each linear layer its input, its output's gradient and its weights."""

    layers: list[tuple[Tensor, Tensor, nn.Parameter, nn.Parameter | None]] = field(default_factory=list)

    @torch.no_grad()
    def finish(self) -> None:
        """Compute the weights' gradients and add them to `.grad`."""
        while self.layers:
            x_ND, g_NC, weight, bias = self.layers.pop()
            if weight.requires_grad:
                if weight.grad is None:
                    weight.grad = g_NC.t() @ x_ND
                else:
                    weight.grad.addmm_(g_NC.t(), x_ND)
            if bias is not None and bias.requires_grad:
                total = g_NC.sum(dim=0)
                bias.grad = total if bias.grad is None else bias.grad.add_(total)


@contextmanager
def deferring(rest: Rest) -> Iterator[None]:
    """Linear layers called inside, on this thread, leave their weights' gradients to `rest`.

    Only if the weights are parameters: a computed weight (of a weight norm) must pass its gradient on at once.
    """
    functional.linear = _linear  # modules look it up at each call; on other threads it calls the plain one
    _here.rest = rest
    try:
        yield
    finally:
        _here.rest = None
        functional.linear = _plain


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 (torch's own name)
    rest: Rest | None = getattr(_here, "rest", None)
    fits = _is_plain(weight) and (bias is None or _is_plain(bias)) and not weight.is_complex()
    if rest is None or not fits or not torch.is_grad_enabled() or torch.is_autocast_enabled(input.device.type):
        return _plain(input, weight, bias)
    # Flattened first: if that makes a copy, both parts share it. Done outside the function, whose output must not be a
    # view: later operations may change it in place.
    out: Tensor = _Linear.apply(input.reshape(-1, input.shape[-1]), weight, bias, rest)  # type: ignore[no-untyped-call]
    return out.view(*input.shape[:-1], len(weight)) if input.dim() != 2 else out


def _is_plain(weight: Tensor) -> bool:
    """Whether it is a parameter without hooks on its gradient."""
    return type(weight) is nn.Parameter and not _is_hooked(weight)


def _is_hooked(weight: Tensor) -> bool:
    """Whether it has hooks from `register_hook` or `register_post_accumulate_grad_hook`."""
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)


class _Linear(torch.autograd.Function):
    """A linear layer that records what its weights' gradients are computed from."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, rest: Rest) -> Tensor:
        ctx.save_for_backward(x_ND)
        ctx.weight, ctx.bias, ctx.rest = weight, bias, rest
        return _plain(x_ND, weight, bias)

    @staticmethod
    def backward(ctx: Any, g_NC: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x_ND,) = ctx.saved_tensors
        weight, bias = ctx.weight, ctx.bias
        g_ND = g_NC @ weight if ctx.needs_input_grad[0] else None
        if _is_hooked(weight) or (bias is not None and _is_hooked(bias)):  # hooks added since the forward
            wanted = ctx.needs_input_grad
            return g_ND, g_NC.t() @ x_ND if wanted[1] else None, g_NC.sum(dim=0) if wanted[2] else None, None
        ctx.rest.layers.append((x_ND, g_NC, weight, bias))
        return g_ND, None, None, None
