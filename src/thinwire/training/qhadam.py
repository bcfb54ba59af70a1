"""Adam with quasi-hyperbolic momentum (QHAdam, arXiv 1810.06801) whose memory grows with the run: for stale gradients.

A step follows (1 - d) m + d g: the mean m of past gradients, and directly a share d of the newest. Gradients that are
partly an epoch or two old make every rule oscillate from some curvature on; what bears more of it is a longer memory
with a smaller direct share, and the price of a long memory is a slow start. So memory begins as short as Adam's and
grows with the steps taken. And the second moment forgets within some thirty steps, so that a weight that begins to
swing takes shorter steps before the swing has grown (decision 15).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Steps that momentum remembers are a third of those taken, from Adam's ten on.
SHARE_REMEMBERED = 1 / 3
BETA_AT_FIRST = 0.9


class QHAdam(torch.optim.Optimizer):
    """`betas`: momentum's, at most, and the second moment's. `direct`: the newest gradient's share, at least."""

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
        # Both means started from zero: what they weigh so far, exactly, as beta is another in each step.
        state["mean_weight"].mul_(beta).add_(1 - beta)
        state["exp_avg"].lerp_(gradient, 1 - beta)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        move = state["exp_avg"] * ((1 - direct) / state["mean_weight"].item()) + direct * gradient
        spread = (state["exp_avg_sq"] / (1 - beta2**taken)).sqrt_().add_(group["eps"])
        parameter.addcdiv_(move, spread, value=-group["lr"])


def momentum(step: float, *, most: float) -> float:
    """Momentum's beta in this step, counted from 1."""
    grown = 1 - 1 / (SHARE_REMEMBERED * step)
    return min(most, max(BETA_AT_FIRST, grown))
