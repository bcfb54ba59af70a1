"""What gradients can go through, by name: a codec, what is remembered of its losses, and how payloads can meet.

none                  float32, summed on the way
float16 bfloat16      likewise in two bytes
sign ternary          one or two bits a value (EF-SignSGD, TernGrad)
qsgd:4:128 uniform:4  a few bits, bucket by bucket (QSGD)
topk:0.01             the largest hundredth, k counted tensor by tensor
randomk:0.01          a hundredth that the seed picks; summed on the way, since all ranks pick the same
dgc:0.01              topk with momentum correction (Deep Gradient Compression); the optimizer then has no momentum
dgc:0.01:masked       and, as published, momentum that is forgotten where values were sent
"""

from dataclasses import dataclass
from functools import cache

from thinwire.codecs import QSGD, Bucketed, Codec, Fitted, Ternary, TopK, Uniform, parse_codec

NONE = "none"
DENSE = ("float16", "bfloat16")
ALL_REDUCE, ALL_GATHER, TWO_STEP = "all_reduce", "all_gather", "two_step"
RESIDUAL, MOMENTUM, MASKED = "residual", "momentum", "masked"
# Values of a row that has a range of its own, where a codec works by rows.
ROW = 512
# What `auto` chooses from: nothing here needs another optimizer or learning rate.
AUTO = (NONE, "bfloat16", "uniform:8", "qsgd:4:128", "sign", "topk:0.01")
# By what it does to gradients; each next choice must make a step so many times as fast.
MILDEST_FIRST = (AUTO[:1], AUTO[:2], AUTO)
LEAST_GAIN = 1.1


@dataclass(frozen=True)
class Algorithm:
    """One of the names above, taken apart."""

    spec: str
    codec: Codec | None  # None: float32 as it is
    memory: str  # of what the codec lost: RESIDUAL, MOMENTUM, MASKED or none
    primitives: tuple[str, ...]  # by which payloads can meet

    @property
    def has_momentum(self) -> bool:
        """Its own: the optimizer must have none."""
        return self.memory in (MOMENTUM, MASKED)

    @property
    def ratio(self) -> float:
        """The share of values that is sent: 1 but for sparse codecs."""
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
    if isinstance(codec, Uniform):
        codec = Bucketed(codec, ROW)
    if feedback and isinstance(codec, Bucketed | QSGD | Ternary):
        codec = Fitted(codec)  # unbiased ones may lose more than there was; memory must not grow
    met = (ALL_REDUCE,) if name == "randomk" else (ALL_GATHER, TWO_STEP)
    return Algorithm(spec, codec, memory, met)
