"""Error feedback: what a codec loses is remembered and added to the next message (arXiv 1901.09847)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.codecs.base import Codec, Shape


class ErrorFeedback(Codec):
    """A codec with memory, the only one: `p = x + m[name]`, send `p`, keep `m[name] = p - decoded`.

    Give each tensor a name of its own, a parameter's say: tensors of one name share one memory. For each name the sum
    of what was sent plus what is remembered equals the sum of what came in. Memory is float32 on x's device, saved by
    `state_dict` and restored by `load_state_dict`. It stays bounded only around a contraction: docs/codecs.md.
    Wire, size and decoding are the wrapped codec's.
    """

    def __init__(self, codec: Codec) -> None:
        if isinstance(codec, ErrorFeedback):
            raise ValueError(f"ErrorFeedback({codec}): one memory is enough; wrap the plain codec itself")
        self.codec = codec
        self.fills_out = codec.fills_out
        self.uses_seed = codec.uses_seed
        self._memory: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"ErrorFeedback({self.codec})"

    def nbytes(self, shape: Shape) -> int:
        return self.codec.nbytes(shape)

    # Overridden, since it takes a name too. The wrapped codec checks what the base class would.
    def encode(self, x: Tensor, *, name: str = "", seed: int = 0, out: Tensor | None = None) -> Tensor:
        wanted = self._as_float32(x)
        remembered = self._memory.get(name)
        if remembered is not None:
            if remembered.shape != x.shape:
                raise ValueError(
                    f"{self}.encode: name {name!r} remembers shape {tuple(remembered.shape)}, x has {tuple(x.shape)}; "
                    "give each tensor a name of its own"
                )
            wanted = wanted + remembered.to(wanted.device)
        data = self.codec.encode(wanted, seed=seed, out=out)
        self._memory[name] = wanted - self.codec.decode(data, wanted.shape, seed=seed)
        return data

    def state_dict(self) -> dict[str, Tensor]:
        """The memory by name: tensors only, ready for safetensors."""
        return {name: memory.clone() for name, memory in self._memory.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the memory by what `state_dict` gave."""
        self._memory = {name: memory.detach().to(torch.float32, copy=True) for name, memory in state.items()}

    def _encode(self, x: Tensor, seed: int, out: Tensor) -> bool:
        raise AssertionError("encode is overridden")

    def _encode_difference(self, x: Tensor, copy: Tensor, seed: int, out: Tensor) -> bool:
        raise ValueError(f"{self}.encode_difference: what was not sent is in the copies already; use {self.codec}")

    def _decode(self, data: Tensor, seed: int, out: Tensor) -> bool:
        return self.codec._decode(data, seed, out)

    def _add(self, data: Tensor, seed: int, out: Tensor) -> bool:
        return self.codec._add(data, seed, out)
