"""Compression algorithms by name: a codec, what is remembered of its losses, and how payloads can be exchanged.

none                  float32, summed on the way
float16 bfloat16      two bytes a value, summed on the way
sign ternary          one or two bits a value (EF-SignSGD, TernGrad)
qsgd:4:128 uniform:4  a few bits a value, each bucket with its own scale (QSGD)
nearest:1 budget:0.5  the same with nothing at random; a budget sends the buckets that matter most
topk:0.01             the largest hundredth of each tensor's values
randomk:0.01          a hundredth, picked by the seed; summed on the way, since all ranks pick the same places
dgc:0.01              topk with momentum correction (Deep Gradient Compression); the optimizer then has no momentum
dgc:0.01:masked       the same, and momentum becomes zero where values were sent, as published
"""

from dataclasses import dataclass
from functools import cache

from thinwire.codecs import QSGD, Bucketed, Budget, Codec, Fitted, Nearest, Ternary, TopK, Uniform, parse_codec

NONE = "none"
DENSE = ("float16", "bfloat16")
ALL_REDUCE, ALL_GATHER, TWO_STEP = "all_reduce", "all_gather", "two_step"
RESIDUAL, MOMENTUM, MASKED = "residual", "momentum", "masked"
# Values in a row, for codecs that give each row a range of its own.
ROW = 512
# The codecs that `auto` chooses from. None of them needs another optimizer or learning rate.
AUTO = (NONE, "bfloat16", "uniform:8", "qsgd:4:128", "sign", "topk:0.01")
# The share of an uncompressed step's progress that a step by these codecs made where it was measured, with error
# feedback (decision 18). A plan expects it; the run measures its own.
EXPECTED_SHARES = {NONE: 1.0, "bfloat16": 1.0, "uniform:8": 1.0, "qsgd:4:128": 0.96, "sign": 0.9, "topk:0.01": 0.6}
# The choices of `auto`, from mild to lossy. A lossier one must be expected to make LEAST_GAIN times the progress in the
# same time.
MILDEST_FIRST = (AUTO[:1], AUTO[:2], AUTO[:4], AUTO[:5], AUTO)
LEAST_GAIN = 1.1


@dataclass(frozen=True)
class Algorithm:
    """One of the names above, parsed."""

    spec: str
    codec: Codec | None  # None: float32 as it is
    memory: str  # what is remembered: RESIDUAL, MOMENTUM, MASKED, or "" for nothing
    primitives: tuple[str, ...]  # by which payloads can be exchanged

    @property
    def has_momentum(self) -> bool:
        """Whether it has momentum of its own, so that the optimizer must have none."""
        return self.memory in (MOMENTUM, MASKED)

    @property
    def ratio(self) -> float:
        """The share of values that is sent: 1 unless the codec is sparse."""
        return self.codec.ratio if isinstance(self.codec, TopK) else 1.0


@cache
def algorithm(spec: str, *, feedback: bool = True) -> Algorithm:
    """The algorithm of this name. Without feedback, what the codec loses is not remembered."""
    name, _, argument = spec.partition(":")
    if spec == NONE:
        return Algorithm(spec, None, "", (ALL_REDUCE,))
    if spec in DENSE:
        return Algorithm(spec, parse_codec(spec), "", (ALL_REDUCE,))
    memory = RESIDUAL if feedback else ""
    if name == "dgc":
        ratio, _, word = argument.partition(":")
        if word not in ("", MASKED):
            raise ValueError(f"codec {spec!r}: there is no {word!r}; give dgc:RATIO or dgc:RATIO:{MASKED}")
        return Algorithm(spec, parse_codec(f"topk:{ratio or 'nothing'}"), word or MOMENTUM, (ALL_GATHER,))
    if name == "float32":
        raise ValueError("codec 'float32' is called 'none' here: gradients are summed on the way")
    try:
        codec = parse_codec(spec)
    except ValueError as error:
        raise ValueError(f"{error}; or none, or dgc:RATIO") from None
    if feedback and isinstance(codec, Uniform | QSGD | Ternary):
        # An unbiased codec may lose more than the norm of its input, and memory would grow.
        codec = Fitted(Bucketed(codec, ROW) if isinstance(codec, Uniform) else codec)
    elif isinstance(codec, Uniform | Nearest | Budget):
        codec = Bucketed(codec, ROW)
    primitives = (ALL_REDUCE,) if name == "randomk" else (ALL_GATHER, TWO_STEP)
    return Algorithm(spec, codec, memory, primitives)
