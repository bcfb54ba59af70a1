"""Every codec, for laws that hold for all, and the module of kernels."""

import torch

from thinwire.codecs import (
    QSGD,
    BFloat16,
    Bucketed,
    Budget,
    Centred,
    Codec,
    ErrorFeedback,
    Fitted,
    Float16,
    Identity,
    Mixed,
    Nearest,
    RandomK,
    Sign,
    Ternary,
    TopK,
    Uniform,
)
from thinwire.codecs.kernels import Native, native

MIXED_WIDTHS = (0, 1, 2, 4, 8, 16, 32)


def mixed_for(num_rows: int) -> Mixed:
    return Mixed([MIXED_WIDTHS[(3 * row + 1) % len(MIXED_WIDTHS)] for row in range(num_rows)])


def every_codec(num_rows: int) -> list[Codec]:
    return [
        Identity(),
        Float16(),
        BFloat16(),
        *(Uniform(bits) for bits in (1, 2, 4, 8)),
        mixed_for(num_rows),
        *(Nearest(bits) for bits in (1, 2, 4, 8)),
        Budget(0.3),
        Centred(Nearest(1)),
        Centred(Budget(0.3)),
        Sign(),
        Ternary(),
        QSGD(2, bucket=100),
        QSGD(4, bucket=64),
        QSGD(8),
        TopK(0.01),
        TopK(0.3),
        TopK(1),
        RandomK(0.1),
        RandomK(0.5, unbiased=True),
        ErrorFeedback(TopK(0.1)),
        Fitted(Ternary()),
        Fitted(Uniform(1)),
        Bucketed(Uniform(4), 100),
    ]


SIZES = (0, 1, 7, 8, 9, 255, 256, 257)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def module() -> Native:
    loaded = native()
    assert loaded is not None, "the native module is not built: run `make test`, which builds it"
    return loaded
