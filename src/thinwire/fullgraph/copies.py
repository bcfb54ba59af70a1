"""Difference coding, on the sender's side: it keeps the rows that its readers hold, and sends what they lack.

Both ends add the same decoded message to the same rows, so their copies stay equal bit for bit. What a codec loses is
part of the next difference: errors do not add up, and they shrink as training settles.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.codecs import Centred, Codec, Uniform

# The codec of a wire's first message, which has no copy to refer to.
FIRST = Uniform(8)
# Epochs after which a row is sent, however little it has moved, if its message has room.
MOST_AGE = 50


class Copies:
    """The rows of one wire, as their readers hold them."""

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self.ages: Tensor | None = None  # epochs since each row was sent, if the codec leaves rows out
        self.weights: Tensor | None = None  # what each row's squared error counts; None: all rows alike

    def has(self, rows: Tensor) -> bool:
        """Whether the readers hold a copy of these rows."""
        return self.rows is not None and self.rows.shape == rows.shape

    def first(self, parts: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        """The first message for each reader."""
        messages = [FIRST.encode(part.contiguous(), seed=seed) for part, seed in zip(parts, seeds, strict=True)]
        decoded = [FIRST.decode(data, part.shape) for data, part in zip(messages, parts, strict=True)]
        self.rows = torch.cat(decoded)
        self.ages = None
        return messages

    def differences(self, parts: Sequence[Tensor], codecs: Sequence[Codec], seeds: Sequence[int]) -> list[Tensor]:
        """The message for each reader: what it lacks, as far as the codec sends it."""
        assert self.rows is not None
        messages: list[Tensor] = []
        begin = 0
        for part, codec, seed in zip(parts, codecs, seeds, strict=True):
            here = slice(begin, begin + len(part))
            copy = self.rows[here]
            if isinstance(codec, Centred) and codec.chooses_rows:
                data = self._chosen(codec, part - copy, here)
            else:
                data = codec.encode(part - copy, seed=seed)
            codec.add(data, copy, seed=seed)
            messages.append(data)
            begin = here.stop
        return messages

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        kept = {"copies": self.rows, "ages": self.ages}
        return {name: tensor for name, tensor in kept.items() if tensor is not None}

    def restore(self, rows: Tensor | None, ages: Tensor | None) -> None:
        """What `state` gave; without rows, the next message is a first one."""
        self.rows, self.ages = rows, ages

    def _chosen(self, codec: Centred, lacking: Tensor, here: slice) -> Tensor:
        """The message of a codec that chooses among the rows; notes which were sent."""
        assert self.rows is not None
        if self.ages is None:
            # Not all alike, so that rows which hardly move do not all become due in one epoch.
            self.ages = torch.arange(len(self.rows), dtype=torch.int32, device=self.rows.device) % (MOST_AGE // 2)
        ages = self.ages[here]
        ages += 1
        weights = None if self.weights is None else self.weights[here]
        must = (ages - (MOST_AGE - 1)).clamp_(min=0)
        data = codec.encode_rows(lacking, weights=weights, must=must)
        ages.masked_fill_(codec.sent(data, lacking.shape) > 0, 0)
        return data
