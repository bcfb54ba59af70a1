"""Chooses who does the work: the native module on CPU tensors, the torch twins elsewhere or where it is missing."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Protocol, cast

import torch
from torch import Tensor

from thinwire.codecs import twins


class Kernels(Protocol):
    """What `native/module.cpp` and `codecs/twins` both offer, equal bit for bit.

    x and out are contiguous float32, flat or [N, D]; data is contiguous uint8, flat. An encoder fills `out`, which has
    exactly the codec's size, and returns False where a value can't be sent (then the content of `out` means nothing).
    A decoder overwrites `out`, what is named add_ adds to it.
    """

    def encode_copy(self, x: Tensor, dtype: str, out: Tensor) -> bool: ...
    def decode_copy(self, data: Tensor, dtype: str, out: Tensor) -> None: ...
    def add_copy(self, data: Tensor, dtype: str, out: Tensor) -> None: ...
    def encode_uniform(self, x_ND: Tensor, bits: int, seed: int, out: Tensor) -> bool: ...
    def decode_uniform(self, data: Tensor, bits: int, out_ND: Tensor) -> None: ...
    def add_uniform(self, data: Tensor, bits: int, out_ND: Tensor) -> None: ...
    def encode_mixed(self, x_ND: Tensor, bits_N: Tensor, seed: int, out: Tensor) -> bool: ...
    def decode_mixed(self, data: Tensor, bits_N: Tensor, out_ND: Tensor) -> None: ...
    def add_mixed(self, data: Tensor, bits_N: Tensor, out_ND: Tensor) -> None: ...
    def encode_sign(self, x: Tensor, out: Tensor) -> bool: ...
    def decode_sign(self, data: Tensor, out: Tensor) -> None: ...
    def add_sign(self, data: Tensor, out: Tensor) -> None: ...
    def encode_ternary(self, x: Tensor, seed: int, out: Tensor) -> bool: ...
    def decode_ternary(self, data: Tensor, out: Tensor) -> None: ...
    def add_ternary(self, data: Tensor, out: Tensor) -> None: ...
    def encode_qsgd(self, x: Tensor, bits: int, bucket: int, seed: int, out: Tensor) -> bool: ...
    def decode_qsgd(self, data: Tensor, bits: int, bucket: int, out: Tensor) -> None: ...
    def add_qsgd(self, data: Tensor, bits: int, bucket: int, out: Tensor) -> None: ...
    def encode_topk(self, x: Tensor, k: int, out: Tensor) -> bool: ...
    def decode_topk(self, data: Tensor, k: int, out: Tensor) -> bool: ...
    def add_topk(self, data: Tensor, k: int, out: Tensor) -> bool: ...
    def encode_randomk(self, x: Tensor, k: int, gain: float, seed: int, out: Tensor) -> bool: ...
    def decode_randomk(self, data: Tensor, k: int, seed: int, out: Tensor) -> None: ...
    def add_randomk(self, data: Tensor, k: int, seed: int, out: Tensor) -> None: ...
    def fit_scale(self, x: Tensor, q: Tensor, out: Tensor) -> bool: ...
    def drop_rows(self, x_ND: Tensor, ids_N: Tensor, keep: float, seed: int, out_ND: Tensor) -> None: ...
    def row_variances(self, x_ND: Tensor, bits_C: Tensor, out_NC: Tensor) -> None: ...


class Native(Kernels, Protocol):
    """The native module's own additions."""

    def isa(self) -> str: ...
    def set_isa(self, isa: str) -> bool: ...
    def set_num_threads(self, threads: int) -> None: ...
    def prefer_huge_pages(self, memory: Tensor) -> None: ...


_twins_only: ContextVar[bool] = ContextVar("twins_only", default=False)

# Below this many bytes fresh memory is cheap enough as it comes.
HUGE_PAGES_FROM_BYTES = 8 << 20


def kernels_for(x: Tensor) -> Kernels:
    """The fastest kernels for this tensor's device; CPU kernels use as many threads as torch does."""
    module = None if not x.is_cpu or _twins_only.get() else native()
    if module is None:
        return twins
    module.set_num_threads(torch.get_num_threads())
    return module


@cache
def native() -> Native | None:
    """The native module, or None with one warning. `THINWIRE_NATIVE=0` turns it off without a word."""
    if os.environ.get("THINWIRE_NATIVE") == "0":
        return None
    try:
        return cast(Native, import_module("thinwire._native"))
    except ImportError as error:
        warnings.warn(
            f"thinwire's native kernels could not be loaded ({error}); the torch twins give the same results, many "
            "times slower. Reinstall thinwire where a C++17 compiler is at hand, or set THINWIRE_NATIVE=0.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


@contextlib.contextmanager
def twins_only() -> Iterator[None]:
    """Inside, CPU tensors too go through the twins: for tests and for `thinwire bench codec`."""
    token = _twins_only.set(True)
    try:
        yield
    finally:
        _twins_only.reset(token)


def empty(size: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.empty, in huge pages where that pays."""
    fresh = torch.empty(size, dtype=dtype, device=device)
    if device.type == "cpu" and fresh.nbytes >= HUGE_PAGES_FROM_BYTES and (module := native()) is not None:
        module.prefer_huge_pages(fresh.view(-1).view(torch.uint8))
    return fresh
