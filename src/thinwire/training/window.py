"""Which epochs a recording notes, and the weight of each in the mean over a run. Pure."""

from dataclasses import dataclass

# Numbers of epochs: warm-up epochs, and noted epochs after them.
WARM, NOTED = 2, 5


@dataclass(frozen=True)
class Window:
    """`warm` epochs, beginning with epoch `first`, and then one noted epoch for each weight."""

    first: int
    warm: int
    weights: list[float]

    @property
    def noted(self) -> range:
        begin = self.first + self.warm
        return range(begin, begin + len(self.weights))


def even(share: float = 1.0) -> list[float]:
    """The weight `share`, spread evenly over noted epochs."""
    return [max(0.0, share) / NOTED] * NOTED


USUAL = Window(0, WARM, even())
