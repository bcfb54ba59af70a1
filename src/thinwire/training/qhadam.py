"""Adam with quasi-hyperbolic momentum (QHAdam, arXiv 1810.06801) whose memory grows with the run: for stale gradients.

A step follows (1 - d) m + d g, with m the mean of past gradients and d the direct share of the newest gradient g.
With gradients that are partly an epoch or two old, every rule oscillates above some curvature. A longer memory with a
smaller direct share raises that limit, but makes a slow start. So memory begins as short as Adam's and grows with the
steps taken. The second moment forgets within about thirty steps, so that a weight that begins to oscillate takes
shorter steps before the oscillation has grown (decision 15).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Momentum remembers a third of the steps taken, but at least Adam's ten.
SHARE_REMEMBERED = 1 / 3
BETA_AT_FIRST = 0.9


class QHAdam(torch.optim.Optimizer):
    """`betas`: the most of momentum's beta, and the second moment's beta. `direct`: the least share of the newest g."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.01,
        *,
        betas: tuple[float, float] = (0.99, 0.97),
        direct: float = 0.03,
        eps: float = 1e-8,
    ) -> None:
        if not (lr >= 0 and eps >= 0 and all(0 <= beta < 1 for beta in betas) and 0 <= direct <= 1):
            raise ValueError(
                f"QHAdam(lr={lr}, betas={betas}, direct={direct}, eps={eps}): "
                "lr and eps are 0 or more, betas below 1, direct from 0 to 1"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "direct": direct, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["mean_weight"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        most, beta2 = group["betas"]
        taken = state["step"].item()
        beta = momentum(taken, most=most)
        direct = max(group["direct"], 1 - beta)
        # Both means start from zero. `mean_weight` is the exact sum of weights so far, since beta changes each step.
        state["mean_weight"].mul_(beta).add_(1 - beta)
        state["exp_avg"].lerp_(gradient, 1 - beta)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        move = state["exp_avg"] * ((1 - direct) / state["mean_weight"].item()) + direct * gradient
        spread = (state["exp_avg_sq"] / (1 - beta2**taken)).sqrt_().add_(group["eps"])
        parameter.addcdiv_(move, spread, value=-group["lr"])


def momentum(step: float, *, most: float) -> float:
    """Momentum's beta in this step; steps count from 1."""
    grown = 1 - 1 / (SHARE_REMEMBERED * step)
    return min(most, max(BETA_AT_FIRST, grown))
