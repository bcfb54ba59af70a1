"""Codecs that send a few of the values: TopK and RandomK, k counted over the whole tensor."""

import math

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape, as_flat, num_values
from thinwire.codecs.kernels import kernels_for
from thinwire.codecs.twins.sparse import VALUE_BYTES, topk_bytes


class TopK(Codec):
    """The share `ratio` of values that is largest in magnitude, exactly; among equals the first ones. The rest is zero.

    Wire: k = ceil(ratio n) float32 values, then their positions in Elias and Fano's code: about 5.1 k bytes at 1 %.
    Biased, but never adds error: wrap it in ErrorFeedback.
    """

    uses_seed = False

    def __init__(self, ratio: float) -> None:
        _check_ratio("TopK", ratio)
        self.ratio = ratio

    def __repr__(self) -> str:
        return f"TopK({self.ratio})"

    def nbytes(self, shape: Shape) -> int:
        return topk_bytes(num_values(shape), num_kept(shape, self.ratio))

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(x).encode_topk(as_flat(x), num_kept_of(x.numel(), self.ratio), out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(data).decode_topk(data, num_kept_of(out.numel(), self.ratio), as_flat(out))

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        return kernels_for(data).add_topk(data, num_kept_of(out.numel(), self.ratio), as_flat(out))


class RandomK(Codec):
    """The share `ratio` of values that the seed picks, each equally likely; the rest is zero. Decode with that seed.

    Wire: k = ceil(ratio n) float32 values and no positions: both ends draw them. With the same seed on all ranks the
    bytes add up like the values do. `unbiased` scales by n / k, for use without ErrorFeedback.
    """

    def __init__(self, ratio: float, *, unbiased: bool = False) -> None:
        _check_ratio("RandomK", ratio)
        self.ratio = ratio
        self.unbiased = unbiased

    def __repr__(self) -> str:
        return f"RandomK({self.ratio}{', unbiased=True' if self.unbiased else ''})"

    def nbytes(self, shape: Shape) -> int:
        return VALUE_BYTES * num_kept(shape, self.ratio)

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        k = num_kept_of(x.numel(), self.ratio)
        return kernels_for(x).encode_randomk(as_flat(x), k, self._gain(x), seed, out)

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).decode_randomk(data, num_kept_of(out.numel(), self.ratio), seed, as_flat(out))
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        kernels_for(data).add_randomk(data, num_kept_of(out.numel(), self.ratio), seed, as_flat(out))
        return True

    def _refused(self, x_ND: Tensor) -> Tensor:
        return ~torch.isfinite(x_ND * self._gain(x_ND)).all(dim=1)

    def _limit(self) -> str:
        return "is beyond float32 once scaled by n / k; scale it down"

    def _gain(self, x: Tensor) -> float:
        return x.numel() / num_kept_of(x.numel(), self.ratio) if self.unbiased and x.numel() else 1.0


def num_kept(shape: Shape, ratio: float) -> int:
    """At least one value, so that no tensor starves; none of an empty one."""
    return num_kept_of(num_values(shape), ratio)


def num_kept_of(count: int, ratio: float) -> int:
    # The product may land just above a whole number (0.07 * 100 = 7.000000000000001): that is not one more value.
    return max(min(count, 1), math.ceil(round(count * ratio, 6)))


def _check_ratio(name: str, ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(
            f"{name}(ratio={ratio}): a share of the values, so 0 < ratio <= 1; 0.01 keeps one in a hundred"
        )
