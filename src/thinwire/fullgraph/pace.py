"""Where an epoch's time goes: computation, the part of each transfer that it hides, and waiting."""

import statistics
from collections import deque
from collections.abc import Sequence

import torch

from thinwire.fullgraph.wire import Wire
from thinwire.links import Door

EPOCHS = 16
CHANNEL = "pace"


# By channel, in seconds: from post to finish, waiting, in transfer.
Times = dict[str, tuple[float, float, float]]


class Pace:
    """The times of the last epochs on this rank."""

    def __init__(self) -> None:
        self._epochs: deque[tuple[float, Times]] = deque(maxlen=EPOCHS)
        self._others: deque[tuple[float, Times]] = deque(maxlen=EPOCHS)  # epochs that traced rows, which takes time

    def add(self, seconds: float, wires: Sequence[Wire], *, looked: bool) -> None:
        """Add an epoch. `seconds` is from the beginning of its pass to the sum of gradients."""
        times = {wire.channel: (wire.window_s, wire.exposed_s, wire.flight_s) for wire in wires if wire.width}
        (self._others if looked else self._epochs).append((seconds, times))

    def clear(self) -> None:
        self._epochs.clear()
        self._others.clear()

    def to_json(self) -> list[list[tuple[float, Times]]]:
        return [list(self._epochs), list(self._others)]

    def restore(self, content: Sequence[Sequence[tuple[float, Times]]]) -> None:
        self.clear()
        self._epochs.extend(content[0])
        self._others.extend(content[1])

    def hidden_s(self, channels: Sequence[str], door: Door) -> list[float]:
        """Seconds of computation that can hide each transfer, on the rank that has the fewest."""
        windows = torch.tensor([self._median(channel, 0) for channel in channels], dtype=torch.float64)
        return [float(least) for least in door.gather(windows, channel=CHANNEL).amin(dim=0)]

    def predict(
        self, channels: Sequence[str], before_s: Sequence[float], after_s: Sequence[float], door: Door
    ) -> float | None:
        """Predicted seconds of an epoch whose transfers take `after_s` instead of `before_s`; the mean of all ranks."""
        epochs = self._epochs or self._others
        if not epochs:
            return None
        # Epoch by epoch, since waiting includes jitter that a median would hide. Time other than waiting stays as it
        # was. The measured time of a transfer changes only by the predicted difference.
        predicted = []
        for total, times in epochs:
            for channel, before, after in zip(channels, before_s, after_s, strict=True):
                window, exposed, flight = times[channel]
                total += max(0.0, max(after, flight + after - before) - window) - exposed
            predicted.append(total)
        seconds = statistics.median(predicted)
        summed = door.all_reduce(torch.tensor([seconds], dtype=torch.float64), channel=CHANNEL).wait()
        return float(summed) / door.world_size

    def _median(self, channel: str, which: int) -> float:
        epochs = self._epochs or self._others
        return statistics.median(times[channel][which] for _, times in epochs) if epochs else 0.0
