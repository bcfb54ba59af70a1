"""The codec contract: a float tensor to bytes and back, its size known before any data exists. Knows no network.

Every check of what a caller hands over is here; a codec itself sees clean float32 and buffers of the right size.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.codecs import kernels

Shape = Sequence[int]

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Codec(ABC):
    """A float tensor to bytes and back. No hidden state; both ends know codec, shape and seed from the plan.

    encode takes float32, float16 or bfloat16 of any layout; decode returns float32, add adds to it. `out` saves the
    allocation: a contiguous flat uint8 tensor of `nbytes(x.shape)`, or a contiguous float32 tensor of `shape`. A value
    that is not finite, or that the codec can't hold, is a ValueError that names its row; rows run along the last
    dimension.
    """

    @abstractmethod
    def nbytes(self, shape: Shape) -> int:
        """The exact size of `encode` for any tensor of this shape."""

    @abstractmethod
    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        """Fill `out` from contiguous float32 `x`; False where a value can't be sent."""

    @abstractmethod
    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        """Fill contiguous float32 `out`; False where the bytes can't be this codec's."""

    # False where a codec leaves some values of `out` as they were: then fresh memory must be zeros.
    fills_out: bool = True
    # False where the seed changes nothing.
    uses_seed: bool = True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        """Add to contiguous float32 `out`; False, and `out` as it was, where the bytes can't be this codec's."""
        decoded = self._fresh(tuple(out.shape), out.device)
        if not self._decode(data, seed, decoded):
            return False
        out += decoded
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        """Which rows of finite values `_encode` can't send, bool [N]; by default the one with the largest value."""
        most = x_ND.abs().amax(dim=1)
        return most == most.max()

    def _limit(self) -> str:
        """The end of an error's sentence about a refused row: why, and what would work."""
        return "is beyond what float32 holds after scaling; use Identity()"

    def _encode_difference(self, x: Tensor, copy: Tensor, seed: int, out: Tensor) -> bool:
        """Encode x - copy and add to `copy` what that decodes to; False where a value can't be sent."""
        return self._encode(x - copy, seed, out) and self._add(out, seed, copy)

    def encode(self, x: Tensor, *, seed: int = 0, out: Tensor | None = None) -> Tensor:
        _check_seed(seed)
        return self._encoded(x, None, out, lambda x, _, out: self._encode(x, seed, out))

    def encode_difference(self, x: Tensor, copy: Tensor, *, seed: int = 0, out: Tensor | None = None) -> Tensor:
        """`encode(x - copy)`, then `add` of it to `copy`, bit for bit, in fewer passes where a codec can.

        The receiver keeps such a copy too, by `add`: what was not sent is in the next difference. `copy` is contiguous
        float32 of x's shape. After an error its values mean nothing.
        """
        _check_seed(seed)
        return self._encoded(x, copy, out, lambda x, copy, out: self._encode_difference(x, copy, seed, out))

    def _encoded(
        self, x: Tensor, copy: Tensor | None, out: Tensor | None, work: Callable[[Tensor, Any, Tensor], bool]
    ) -> Tensor:
        """Check what is given, and do the work on it."""
        x = self._as_float32(x).contiguous()
        size = self.nbytes(x.shape)
        if out is None:
            out = kernels.empty(size, torch.uint8, x.device)
        else:
            _check_buffer(f"{self}.encode: out", out, (size,), torch.uint8, x.device, apart_from=x)
        if copy is not None:
            what = f"{self}.encode_difference: copy"
            _check_buffer(what, copy, tuple(x.shape), torch.float32, x.device, apart_from=x)
            _check_buffer(what, copy, tuple(x.shape), torch.float32, x.device, apart_from=out)
        if not work(x, copy, out):
            raise ValueError(self._complaint(x if copy is None else x - copy))
        return out

    def decode(self, data: Tensor, shape: Shape, *, seed: int = 0, out: Tensor | None = None) -> Tensor:
        shape = check_shape(shape)
        _check_seed(seed)
        _check_buffer(f"{self}.decode: data for shape {shape}", data, (self.nbytes(shape),), torch.uint8, data.device)
        if out is None:
            out = self._fresh(shape, data.device)
        else:
            _check_buffer(f"{self}.decode: out", out, shape, torch.float32, data.device, apart_from=data)
        if not self._decode(data, seed, out):
            raise ValueError(f"{self}.decode: {self._disowned(data, shape)}")
        return out

    def add(self, data: Tensor, out: Tensor, *, seed: int = 0) -> Tensor:
        """`out += decode(data, out.shape)`, bit for bit; a sparse codec touches only what was sent. Returns `out`."""
        shape = tuple(out.shape)
        _check_seed(seed)
        _check_buffer(f"{self}.add: out", out, shape, torch.float32, data.device, apart_from=data)
        _check_buffer(f"{self}.add: data for shape {shape}", data, (self.nbytes(shape),), torch.uint8, data.device)
        if not self._add(data, seed, out):
            raise ValueError(f"{self}.add: {self._disowned(data, shape)}")
        return out

    def _fresh(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        out = kernels.empty(shape, torch.float32, device)
        return out if self.fills_out else out.zero_()

    def _disowned(self, data: Tensor, shape: Shape) -> str:
        return f"these {data.numel()} bytes were not made by {self} for shape {tuple(shape)}"

    def _as_float32(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"{self}.encode: x is a {type(x).__name__}; give a tensor, for example torch.as_tensor(x)")
        if x.dtype not in FLOAT_DTYPES:
            raise ValueError(f"{self}.encode: x is {x.dtype}; give float32, float16 or bfloat16, for example x.float()")
        return x.detach().resolve_neg().to(torch.float32)

    def _complaint(self, x: Tensor) -> str:
        rows = as_rows(x)
        finite = torch.isfinite(rows)
        if not bool(finite.all()):
            row, column = torch.nonzero(~finite)[0].tolist()
            return (
                f"{self}.encode: row {row} of shape {tuple(x.shape)} is not finite "
                f"({rows[row, column].item()} at column {column}); look for a diverging loss or bad input before it"
            )
        magnitudes = torch.where(self._refused(rows), rows.abs().amax(dim=1), -1.0)
        row = int(magnitudes.argmax())
        largest = magnitudes[row].item()
        return f"{self}.encode: row {row} of shape {tuple(x.shape)}, with values up to {largest:.5g}, {self._limit()}"


def check_shape(shape: Shape) -> tuple[int, ...]:
    checked = tuple(operator.index(size) for size in shape)
    if any(size < 0 for size in checked):
        raise ValueError(f"shape {checked} has a negative size; give sizes of 0 or more")
    return checked


def num_values(shape: Shape) -> int:
    return math.prod(check_shape(shape))


def rows_and_width(shape: Shape) -> tuple[int, int]:
    """(N, D) of a tensor taken as rows along its last dimension; a vector is one row, a number one row of one."""
    checked = check_shape(shape)
    return math.prod(checked[:-1]), checked[-1] if checked else 1


# These two run for every part of a message, so the usual shapes are tested first and need no view.
def as_rows(x: Tensor) -> Tensor:
    if x.dim() == 2:
        return x
    return x.unsqueeze(0) if x.dim() == 1 else x.view(rows_and_width(x.shape))


def as_flat(x: Tensor) -> Tensor:
    return x if x.dim() == 1 else x.view(-1)


def _check_seed(seed: int) -> None:
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(
            f"seed is {seed!r}; give a whole number, 0 <= seed < 2**63, "
            "for example from thinwire.codecs.seed_from(run, epoch)"
        )


def _check_buffer(
    what: str,
    buffer: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    apart_from: Tensor | None = None,
) -> None:
    if buffer.dtype != dtype or tuple(buffer.shape) != shape or buffer.device != device or not buffer.is_contiguous():
        layout = "contiguous" if buffer.is_contiguous() else "not contiguous"
        raise ValueError(
            f"{what}: given {buffer.dtype} of shape {tuple(buffer.shape)} on {buffer.device}, {layout}; "
            f"expected contiguous {dtype} of shape {shape} on {device}"
        )
    if apart_from is not None and _overlap(buffer, apart_from):
        raise ValueError(f"{what} shares memory with what is being read; give a buffer of its own")


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes
