"""Which epochs a recording notes, and what each counts for in the mean of many. Pure."""

from dataclasses import dataclass

# Epochs before those that are noted, and of those.
WARM, NOTED = 2, 5


@dataclass(frozen=True)
class Window:
    """`warm` epochs from the `first` one on, then one noted for each weight."""

    first: int
    warm: int
    weights: list[float]

    @property
    def noted(self) -> range:
        begin = self.first + self.warm
        return range(begin, begin + len(self.weights))


def even(share: float = 1.0) -> list[float]:
    """So much, over epochs that are all alike."""
    return [max(0.0, share) / NOTED] * NOTED


USUAL = Window(0, WARM, even())
