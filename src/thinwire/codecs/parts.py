"""Many tensors in one message: consecutive parts of a flat tensor, each in a codec of its own."""

import operator
from collections.abc import Sequence

from torch import Tensor

from thinwire.codecs.base import Codec, Shape, check_shape
from thinwire.codecs.feedback import ErrorFeedback
from thinwire.codecs.seeds import seed_from


class Parts(Codec):
    """(codec, length) after (codec, length): part i is the next `length` values, with the seed `seed_from(seed, i)`.

    Wire: the parts' payloads one after another, nothing between them, each beginning at whatever byte it does. An
    error names its part. Where `add` refuses the bytes of one part, those before it have been added.
    """

    def __init__(self, parts: Sequence[tuple[Codec, int]]) -> None:
        self.parts = tuple((codec, operator.index(length)) for codec, length in parts)
        self._lengths = [length for _, length in self.parts]
        self._sizes: list[int] = []
        for number, (codec, length) in enumerate(self.parts):
            if isinstance(codec, ErrorFeedback):
                raise ValueError(f"Parts: part {number} is {codec}; memory goes outside: ErrorFeedback(Parts(...))")
            try:
                self._sizes.append(codec.nbytes((length,)))
            except ValueError as error:
                raise ValueError(f"Parts: part {number}, {codec} of {length} values: {error}") from None
        self._count, self._nbytes = sum(self._lengths), sum(self._sizes)
        self._numbered = list(enumerate(codec for codec, _ in self.parts))
        self.fills_out = all(codec.fills_out for codec, _ in self.parts)
        self.uses_seed = any(codec.uses_seed for codec, _ in self.parts)

    def __repr__(self) -> str:
        return f"Parts({len(self.parts)} parts of {self._count} values)"

    def nbytes(self, shape: Shape) -> int:
        if check_shape(shape) != (self._count,):
            raise ValueError(
                f"{self}: shape {tuple(shape)} is not ({self._count},); give all parts in one flat tensor, one after "
                "another, for example torch.cat([x.flatten() for x in tensors])"
            )
        return self._nbytes

    # The loops run once a part: everything was checked and measured before, and all slices are made in one call.
    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        slices = zip(self._numbered, x.split(self._lengths), out.split(self._sizes), strict=True)
        for (number, codec), values, payload in slices:
            if not codec._encode(values, seed_from(seed, number) if codec.uses_seed else 0, payload):
                raise ValueError(f"{self}.encode: {self._where(number)}: {codec._complaint(values)}")
        return True

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        slices = zip(self._numbered, data.split(self._sizes), out.split(self._lengths), strict=True)
        for (number, codec), payload, values in slices:
            if not codec._decode(payload, seed_from(seed, number) if codec.uses_seed else 0, values):
                raise ValueError(f"{self}.decode: {self._where(number)}: {codec._disowned(payload, values.shape)}")
        return True

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        slices = zip(self._numbered, data.split(self._sizes), out.split(self._lengths), strict=True)
        for (number, codec), payload, values in slices:
            if not codec._add(payload, seed_from(seed, number) if codec.uses_seed else 0, values):
                raise ValueError(f"{self}.add: {self._where(number)}: {codec._disowned(payload, values.shape)}")
        return True

    def _where(self, number: int) -> str:
        begin = sum(self._lengths[:number])
        return f"part {number}, values {begin}..{begin + self._lengths[number] - 1}"
