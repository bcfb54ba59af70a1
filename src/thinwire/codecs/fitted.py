"""An unbiased codec made a contraction, so that error feedback around it stays bounded."""

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_flat
from thinwire.codecs.feedback import ErrorFeedback
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.flat import SCALE_BYTES
from thinwire.codecs.twins.pack import from_bytes


class Fitted(Codec):
    r"""What the codec decodes, q, times the scale that brings it nearest to x.

    .. math:: a = \frac{\langle x, q \rangle}{\langle q, q \rangle}, \qquad \lVert x - a q \rVert \le \lVert x \rVert

    Wire: the codec's bytes, then a in float32, 4 bytes; 0 where q is all zero. Biased: wrap it in ErrorFeedback.
    """

    def __init__(self, codec: Codec) -> None:
        if isinstance(codec, ErrorFeedback):
            raise ValueError(f"Fitted({codec}): memory goes outside: ErrorFeedback(Fitted(...))")
        if not codec.fills_out:
            raise ValueError(f"Fitted({codec}): values that are not sent can't be fitted; give every row a width")
        self.codec = codec
        self.uses_seed = codec.uses_seed

    def __repr__(self) -> str:
        return f"Fitted({self.codec})"

    def nbytes(self, shape: Shape) -> int:
        return self.codec.nbytes(shape) + SCALE_BYTES

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        payload, scale = out[:-SCALE_BYTES], out[-SCALE_BYTES:]
        if not self.codec._encode(x, seed, payload):
            return False
        q = self._fresh(tuple(x.shape), x.device)
        decoded = self.codec._decode(payload, seed, q)
        assert decoded, f"{self.codec} can't read its own bytes"
        return kernels_for(x).fit_scale(as_flat(x), as_flat(q), scale)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        if not self.codec._decode(data[:-SCALE_BYTES], seed, out):
            return False
        as_flat(out).mul_(from_bytes(data[-SCALE_BYTES:], torch.float32))
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        return self.codec._refused(x_ND)

    def _limit(self) -> str:
        return self.codec._limit()
