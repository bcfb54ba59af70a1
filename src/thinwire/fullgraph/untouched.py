"""Lets us run a user's model without lasting effects: weights, buffers, attributes, random states stay as they were."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Copies = tuple[dict[str, nn.Parameter], dict[str, Tensor]]
# Weights that are all below this close a gate: a last layer or a LayerScale that starts at 1e-6, or at zero.
CLOSED = 1e-2
DROPOUTS = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
}


@contextmanager
def untouched(model: nn.Module, *, seed: int, device: torch.device) -> Iterator[None]:
    """Within this block the model uses copies of its weights and buffers, and random numbers come from `seed`."""
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    before = [{name: _kept(value) for name, value in vars(module).items()} for module in modules]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (a user's model may use the old generator)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            _copy_weights(modules)
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        for module, kept in zip(modules, before, strict=True):
            vars(module).clear()
            vars(module).update({name: _back(*pair) for name, pair in kept.items()})


def _copy_weights(modules: list[nn.Module]) -> None:
    copies: dict[Tensor, Tensor] = {}  # tied weights stay tied
    randomness = torch.Generator().manual_seed(0)

    def copied(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor in copies:
            return None if tensor is None else copies[tensor]
        data = tensor.detach().clone()
        if not isinstance(tensor, nn.Parameter):
            copies[tensor] = data
            return data
        if data.is_floating_point() and data.numel() and float(data.abs().max()) < CLOSED:
            # A closed gate would hide what comes before it.
            data += (0.1 + 0.1 * torch.rand(data.shape, generator=randomness)).to(data)
        copies[tensor] = nn.Parameter(data, requires_grad=tensor.requires_grad)
        return copies[tensor]

    for module in modules:
        for kind in ("_parameters", "_buffers"):
            vars(module)[kind] = {name: copied(tensor) for name, tensor in vars(module)[kind].items()}
        if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            module.dropout = 0.0


def _kept(value: Any) -> tuple[Any, Any]:
    """An attribute's value, and a copy of its content if that may change in place."""
    if isinstance(value, Tensor):
        return value, value.detach().clone()
    return value, (value.copy() if isinstance(value, (list, dict, set)) else None)


def _back(value: Any, content: Any) -> Any:
    """The value with its content restored in place."""
    if content is None:
        return value
    if isinstance(value, Tensor):
        if not torch.equal(value, content):
            value.data.copy_(content)
    elif isinstance(value, list):
        value[:] = content
    else:
        value.clear()
        value.update(content)
    return value


class NoDropout(TorchFunctionMode):
    """Turns dropout off: it would differ between parts, though on a shard it follows the node or is random per rank."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs.update({"dropout_p": 0.0} if len(args) <= 4 else {})
        return func(*args, **kwargs)
