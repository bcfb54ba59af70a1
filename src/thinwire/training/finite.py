"""Infinity and NaN: reported where they first appear, so that no run trains on them."""

import torch
from torch import nn


class NotFinite(ValueError):
    """A message, loss or weight has infinity or NaN, or values beyond its codec's range. Says where and since when."""


def expect_finite_weights(model: nn.Module, done: int) -> None:
    """Raise if a weight is not finite; `done` is the number of epochs done."""
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise NotFinite(
                f"{name} is not finite after epoch {done}. Training has diverged: try a lower learning rate"
            )
