"""Float32 to 32 or 16 bits and back. Twin of native/copy.h.

The encoder writes to `out` and returns whether every value could be sent: finite before and after rounding.
"""

import torch
from torch import Tensor

from thinwire.codecs.twins.pack import from_bytes, to_bytes

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def encode_copy(x: Tensor, dtype: str, out: Tensor) -> bool:
    rounded = x.to(DTYPES[dtype])
    out.copy_(to_bytes(rounded))
    return bool(torch.isfinite(rounded).all())


def decode_copy(data: Tensor, dtype: str, out: Tensor) -> None:
    out.copy_(from_bytes(data, DTYPES[dtype]))


def add_copy(data: Tensor, dtype: str, out: Tensor) -> None:
    out.add_(from_bytes(data, DTYPES[dtype]).to(torch.float32))
