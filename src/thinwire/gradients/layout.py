"""How tensors lie in a group's message, and in the slices of a two-step exchange. Pure."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from thinwire.codecs import Codec, Identity

# A tensor of fewer values goes as it is: its scale or positions would cost as much, and biases and norms are touchy.
SMALL = 512


def parts_of(sizes: Sequence[int], codec: Codec) -> list[tuple[Codec, int]]:
    """Each tensor by the codec, with scales and k of its own; small ones as they are, neighbours in one run."""
    parts: list[tuple[Codec, int]] = []
    for size in filter(None, sizes):
        if size >= SMALL:
            parts.append((codec, size))
        elif parts and isinstance(parts[-1][0], Identity):
            parts[-1] = (parts[-1][0], parts[-1][1] + size)
        else:
            parts.append((Identity(), size))
    return parts


def slices_of(sizes: Sequence[int], n: int) -> list[list[int]]:
    """The same values in n slices of equal length: the sizes of the tensors' pieces in each."""
    total = sum(sizes)
    bounds = [total * rank // n for rank in range(n + 1)]
    edges = [0, *accumulate(sizes)]
    return [
        [piece for begin, end in pairwise(edges) if (piece := min(end, high) - max(begin, low)) > 0]
        for low, high in pairwise(bounds)
    ]
