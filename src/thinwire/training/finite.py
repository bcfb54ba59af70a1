"""Numbers that are none: said where they are first seen, instead of being trained on."""

import torch
from torch import nn


class NotFinite(ValueError):
    """A message, a loss or a weight with infinity or NaN in it, or beyond what its codec holds; where, since when."""


def expect_finite_weights(model: nn.Module, done: int) -> None:
    """After so many epochs."""
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise NotFinite(
                f"{name} is not finite after epoch {done}. Training has diverged: try a lower learning rate"
            )
