"""Codecs by name, as cases, plans and commands write them: uniform:4, qsgd:4:128, topk:0.01, float32."""

from collections.abc import Callable

from thinwire.codecs.base import Codec
from thinwire.codecs.budget import Budget
from thinwire.codecs.copies import BFloat16, Float16, Identity
from thinwire.codecs.nearest import Nearest
from thinwire.codecs.qsgd import QSGD
from thinwire.codecs.scaled import Sign, Ternary
from thinwire.codecs.sparse import RandomK, TopK
from thinwire.codecs.uniform import Uniform

PLAIN: dict[str, Callable[[], Codec]] = {
    "float32": Identity,
    "float16": Float16,
    "bfloat16": BFloat16,
    "sign": Sign,
    "ternary": Ternary,
}
WITH_BITS: dict[str, Callable[[int], Codec]] = {"uniform": Uniform, "nearest": Nearest}
WITH_MEAN_BITS: dict[str, Callable[[float], Codec]] = {"budget": Budget}
WITH_BUCKET: dict[str, Callable[..., Codec]] = {"qsgd": QSGD}  # bits, and a bucket if the usual one won't do
WITH_RATIO: dict[str, Callable[[float], Codec]] = {"topk": TopK, "randomk": RandomK}


def parse_codec(spec: str) -> Codec:
    """The codec that `spec` names."""
    name, _, argument = spec.partition(":")
    try:
        if name in PLAIN and not argument:
            return PLAIN[name]()
        if name in WITH_BITS:
            return WITH_BITS[name](int(argument))
        if name in WITH_MEAN_BITS:
            return WITH_MEAN_BITS[name](float(argument))
        if name in WITH_BUCKET:
            return WITH_BUCKET[name](*_whole_numbers(argument))
        if name in WITH_RATIO:
            return WITH_RATIO[name](float(argument))
    except ValueError as error:
        raise ValueError(f"codec {spec!r}: {error}") from None
    offered = [
        *PLAIN,
        *(f"{name}:BITS" for name in (*WITH_BITS, *WITH_MEAN_BITS)),
        *(f"{name}:BITS[:BUCKET]" for name in WITH_BUCKET),
        *(f"{name}:RATIO" for name in WITH_RATIO),
    ]
    raise ValueError(f"codec {spec!r} is not known; give one of {', '.join(offered)}, for example uniform:4")


def _whole_numbers(argument: str) -> list[int]:
    numbers = argument.split(":")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise ValueError("give BITS or BITS:BUCKET in whole numbers, for example qsgd:4 or qsgd:4:128")
    return [int(number) for number in numbers]
