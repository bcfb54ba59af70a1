"""Levels of a bucket's norm with random rounding (QSGD, arXiv 1610.02132)."""

import operator

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_flat, num_values
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.flat import SCALE_BYTES, bucket_norm
from thinwire.codecs.twins.pack import packed_bytes

WIDTHS = (2, 4, 8)


class QSGD(Codec):
    r"""A sign and one of :math:`s = 2^{b-1} - 1` levels of :math:`|p_i| / \lVert p \rVert_2`, bucket by bucket.

    Wire: per bucket ceil(bucket b / 8) + 4 bytes, the last one as short as it is. Unbiased; error below
    :math:`\lVert p \rVert_2 / s`. A bucket at least as long as the tensor gives one norm for all of it.
    """

    def __init__(self, bits: int = 8, bucket: int = 512) -> None:
        bucket = operator.index(bucket)
        if bits not in WIDTHS:
            raise ValueError(
                f"QSGD(bits={bits}): a sign and at least one level must fill whole bytes, so bits is 2, 4 or 8"
            )
        if bucket < 1:
            raise ValueError(f"QSGD(bucket={bucket}): a bucket holds at least one value; the paper takes 512")
        self.bits = int(bits)
        self.bucket = bucket

    def __repr__(self) -> str:
        return f"QSGD({self.bits}, bucket={self.bucket})"

    def nbytes(self, shape: Shape) -> int:
        whole, rest = divmod(num_values(shape), self.bucket)
        last = packed_bytes(rest, self.bits) + SCALE_BYTES if rest else 0
        return whole * (packed_bytes(self.bucket, self.bits) + SCALE_BYTES) + last

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_qsgd(as_flat(x), self.bits, self.bucket, seed, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_qsgd(data, self.bits, self.bucket, as_flat(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_qsgd(data, self.bits, self.bucket, as_flat(out))
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        buckets = torch.split(x_ND.flatten(), self.bucket)
        refused = [torch.isinf(bucket_norm(bucket[None])).expand(1, len(bucket)) for bucket in buckets]
        return torch.cat(refused, dim=1).view(x_ND.shape).any(dim=1)

    def _limit(self) -> str:
        return "has a norm beyond float32; scale it down"
