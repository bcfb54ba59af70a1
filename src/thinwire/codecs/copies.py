"""Codecs that round each value by itself: Identity, Float16, BFloat16."""

from typing import ClassVar

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_flat, num_values
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.copy import DTYPES


class _Copy(Codec):
    """Each value in another dtype, to nearest, ties to even."""

    dtype: ClassVar[str]
    uses_seed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def nbytes(self, shape: Shape) -> int:
        return DTYPES[self.dtype].itemsize * num_values(shape)

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_copy(as_flat(x), self.dtype, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_copy(data, self.dtype, as_flat(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_copy(data, self.dtype, as_flat(out))
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        return ~torch.isfinite(x_ND.to(DTYPES[self.dtype])).all(dim=1)


class Identity(_Copy):
    """Float32 as it is. Wire: 4 n bytes. Exact."""

    dtype = "float32"


class Float16(_Copy):
    """IEEE half precision. Wire: 2 n bytes. Error at most 2^-11 |x|, or 2^-25 where that is more."""

    dtype = "float16"

    def _limit(self) -> str:
        return "is beyond float16's 65504; use BFloat16() or Uniform(8)"


class BFloat16(_Copy):
    """The upper half of float32. Wire: 2 n bytes. Error at most 2^-8 |x|, or 2^-134 where that is more."""

    dtype = "bfloat16"

    def _limit(self) -> str:
        return "is beyond bfloat16's 3.3895e38; use Identity()"
