"""Codecs with one scale for a whole tensor: Sign and Ternary."""

from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_flat, num_values
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.flat import SCALE_BYTES
from thinwire.codecs.twins.pack import packed_bytes


class Sign(Codec):
    r"""Signs and their mean magnitude (EF-SignSGD, arXiv 1901.09847).

    .. math:: \hat p = \frac{\lVert p \rVert_1}{n}\,\mathrm{sign}(p)

    Wire: ceil(n / 8) + 4 bytes. Biased, but never further from p than zero is: wrap it in ErrorFeedback.
    """

    bits = 1
    uses_seed = False

    def __repr__(self) -> str:
        return "Sign()"

    def nbytes(self, shape: Shape) -> int:
        return packed_bytes(num_values(shape), 1) + SCALE_BYTES

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_sign(as_flat(x), out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_sign(data, as_flat(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_sign(data, as_flat(out))
        return True


class Ternary(Codec):
    r"""-s, 0 or s with :math:`s = \max |p|`, s sent with probability :math:`|p_i| / s` (TernGrad, arXiv 1705.07878).

    Wire: ceil(n / 4) + 4 bytes. Unbiased; variance :math:`|p_i| (s - |p_i|)` a value; error at most s.
    """

    bits = 2

    def __repr__(self) -> str:
        return "Ternary()"

    def nbytes(self, shape: Shape) -> int:
        return packed_bytes(num_values(shape), 2) + SCALE_BYTES

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_ternary(as_flat(x), seed, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_ternary(data, as_flat(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_ternary(data, as_flat(out))
        return True
