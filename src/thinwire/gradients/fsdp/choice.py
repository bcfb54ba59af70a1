"""Which codecs go with FSDP, by name."""

from thinwire.codecs import Bucketed, Codec, Fitted, Identity, Uniform
from thinwire.gradients.algorithms import DENSE, NONE, RESIDUAL, ROW, algorithm

# For the difference of parameters to what the others hold. Unbiased, and the next difference holds what it lost.
PARAMETERS: dict[str, Codec] = {f"uniform:{bits}": Bucketed(Uniform(bits), ROW) for bits in (8, 4)}


def for_gradients(spec: str, *, feedback: bool) -> tuple[Codec, bool]:
    """The codec of a parameter's slice; and whether what it loses is to be remembered."""
    found = algorithm(spec, feedback=feedback)
    if found.memory not in ("", RESIDUAL):
        raise ValueError(
            f"compress: codec {spec!r} keeps momentum, which belongs to FSDP's optimizer; give none, bfloat16, sign, "
            "topk:0.01, uniform:8 or their like"
        )
    codec = found.codec
    if codec is None:
        return Identity(), False
    if spec == "uniform:8" and isinstance(codec, Fitted):
        # Not scaled to the nearest multiple, which takes three times as long as all else: 512 values in 255 steps lose
        # at most 0.4 % of their square (512 S^2 / 4 of at least 255^2 S^2 / 2), so that memory stays bounded anyway.
        codec = codec.codec
    return codec, found.memory == RESIDUAL and spec not in (NONE, *DENSE)


def for_parameters(spec: str) -> Codec:
    if spec not in PARAMETERS:
        raise ValueError(
            f"compress: parameters {spec!r}; give {', '.join(PARAMETERS)}, or None to send them as they are"
        )
    return PARAMETERS[spec]
