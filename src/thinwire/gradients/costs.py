"""The profile, and what each route would cost according to it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.checked import strictly
from thinwire.codecs import Codec
from thinwire.gradients.algorithms import ALL_GATHER, ALL_REDUCE, DENSE, TWO_STEP, algorithm
from thinwire.gradients.layout import SMALL
from thinwire.gradients.timeline import Route
from thinwire.links.cost import Hinge

READY, DEFINED = "ready", "defined"


@dataclass(frozen=True)
class TensorTimes:
    """A parameter: its values, and the seconds of backward between the gradient before it and its own."""

    name: str
    num_values: int
    backward_s: float


@dataclass(frozen=True)
class Affine:
    """Seconds for a group, for each tensor in it, and for each value."""

    group_s: float
    tensor_s: float
    value_s: float

    def of(self, num_values: int) -> float:
        """What a tensor adds. Small tensors are encoded together, so only their values count."""
        return self.value_s * num_values + (self.tensor_s if num_values >= SMALL else 0.0)


@dataclass(frozen=True)
class CodecCost:
    """A rank's seconds by a codec: to encode its gradient and update its memory, to add one payload, to decode one."""

    encode: Affine
    add: Affine
    decode: Affine


@dataclass(frozen=True)
class Contention:
    """How transfers and computation slow each other down, in seconds.

    Each message costs the computation beside it `message_s`, and each byte that a rank sends `byte_s`. While backward
    runs, each message takes `lag_s` longer. A message that has waited for the one before it arrives `haste_s` sooner:
    no thread has to be woken for it.
    """

    message_s: float
    byte_s: float
    lag_s: float = 0.0
    haste_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """What was measured on all ranks together. Times are averages over ranks."""

    world_size: int
    order: str
    tensors: tuple[TensorTimes, ...]
    rest_s: float  # of a step without backward: forward, the optimizer
    codecs: Mapping[str, CodecCost]
    transfers: Mapping[str, Hinge]  # each collective's seconds by a rank's bytes
    post_s: float  # to post a message
    contention: Contention
    # A whole step that sums its gradients in float32, in one message after backward. Codec none is no slower than this.
    plain_step_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Profile":
        return strictly(content, Profile)


def routes_of(profile: Profile, specs: Sequence[str], *, feedback: bool = True) -> list[tuple[str, str, Route]]:
    """(codec, primitive, costs) for each primitive that can exchange the codec's payloads."""
    routes = []
    for spec in specs:
        if spec not in profile.codecs:
            raise ValueError(f"codec {spec!r} is not in the profile, which has {', '.join(profile.codecs)}; profile it")
        chosen = algorithm(spec, feedback=feedback)
        routes += [(spec, primitive, _route(profile, spec, chosen.codec, primitive)) for primitive in chosen.primitives]
    return routes


def _route(profile: Profile, spec: str, codec: Codec | None, primitive: str) -> Route:
    n, cost, beside = profile.world_size, profile.codecs[spec], profile.contention
    sizes = [tensor.num_values for tensor in profile.tensors]
    nbytes = [_nbytes(spec, codec, size) for size in sizes]
    values_per_byte = sum(sizes) / max(sum(nbytes), 1)
    hinge = profile.transfers

    def gathered(size: float) -> float:
        return hinge[ALL_GATHER](size)

    def reduced(size: float) -> float:
        return hinge[ALL_REDUCE](size)

    def two_step(size: float) -> float:
        # Between the two steps the owner of a slice adds up n pieces and encodes the sum.
        values = size * values_per_byte
        between = (
            n * cost.add.group_s + cost.add.value_s * values + cost.encode.group_s + cost.encode.value_s * values / n
        )
        return 2 * hinge["all_to_all"](size / n) + between

    # A payload's time on the wire, its number of messages, and the bytes that a rank sends for each byte of it.
    transfer, messages, sent = {
        ALL_GATHER: (gathered, 1, n - 1),
        ALL_REDUCE: (reduced, 1, 2 * (n - 1) / n),
        TWO_STEP: (two_step, 2, 2 * (n - 1) / n),
    }[primitive]
    per_payload, times = (cost.add, n) if primitive == ALL_GATHER else (cost.decode, 1)
    return Route(
        name=f"{spec} {primitive}",
        compress_s=tuple(
            cost.encode.of(size) + beside.byte_s * sent * payload_bytes
            for size, payload_bytes in zip(sizes, nbytes, strict=True)
        ),
        decompress_s=tuple(times * per_payload.of(size) for size in sizes),
        nbytes=tuple(nbytes),
        compress_fixed_s=cost.encode.group_s + profile.post_s + beside.message_s * messages,
        decompress_fixed_s=times * per_payload.group_s,
        transfer_s=transfer,
        toll_s=lambda size: beside.message_s * messages + beside.byte_s * sent * size,
        lag_s=beside.lag_s * messages,
        haste_s=beside.haste_s * messages,
    )


def _nbytes(spec: str, codec: Codec | None, size: int) -> int:
    if codec is None:
        return 4 * size
    if spec in DENSE:
        return codec.nbytes((size,))
    return codec.nbytes((size,)) if size >= SMALL else 4 * size
