"""How tensors lie in a group's message, and in the slices of a two-step exchange. Pure."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from thinwire.codecs import Codec, Identity

# Smaller tensors are sent as they are: scales or positions would cost as much, and biases and norms bear no errors.
SMALL = 512


def parts_of(sizes: Sequence[int], codec: Codec) -> list[tuple[Codec, int]]:
    """Each tensor is encoded by itself, with its own scales and k. Small ones stay as they are, neighbours together."""
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
    """Cut the values into n slices of equal length: for each slice the sizes of the tensors' pieces in it."""
    total = sum(sizes)
    bounds = [total * rank // n for rank in range(n + 1)]
    edges = [0, *accumulate(sizes)]
    return [
        [piece for begin, end in pairwise(edges) if (piece := min(end, high) - max(begin, low)) > 0]
        for low, high in pairwise(bounds)
    ]
