"""The codecs that FSDP can use, by name."""

from thinwire.codecs import Bucketed, Codec, Fitted, Identity, Uniform
from thinwire.gradients.algorithms import DENSE, NONE, RESIDUAL, ROW, algorithm

# Codecs for the difference between a shard and what the other ranks hold of it. They are unbiased, and what one loses
# is part of the next difference.
PARAMETERS: dict[str, Codec] = {f"uniform:{bits}": Bucketed(Uniform(bits), ROW) for bits in (8, 4)}


def for_gradients(spec: str, *, feedback: bool) -> tuple[Codec, bool]:
    """The codec of a parameter's slice, and whether what it loses is remembered."""
    method = algorithm(spec, feedback=feedback)
    if method.memory not in ("", RESIDUAL):
        raise ValueError(
            f"compress: codec {spec!r} keeps momentum, which belongs to FSDP's optimizer; give none, bfloat16, sign, "
            "topk:0.01, uniform:8 or their like"
        )
    codec = method.codec
    if codec is None:
        return Identity(), False
    if spec == "uniform:8" and isinstance(codec, Fitted):
        # Without the fitted scale, which takes three times as long as everything else. Memory stays bounded anyway: 512
        # values in 255 steps lose at most 0.4 % of their square (512 S^2 / 4 of at least 255^2 S^2 / 2).
        codec = codec.codec
    return codec, method.memory == RESIDUAL and spec not in (NONE, *DENSE)


def for_parameters(spec: str) -> Codec:
    if spec not in PARAMETERS:
        raise ValueError(
            f"compress: parameters {spec!r}; give {', '.join(PARAMETERS)}, or None to send them as they are"
        )
    return PARAMETERS[spec]
