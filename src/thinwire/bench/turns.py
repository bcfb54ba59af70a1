"""A method's run, some epochs at a time."""

from thinwire.training.run import Run


class Turns:
    """What it has under way when a turn ends is waited for: it is nobody else's burden."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._epoch = 0

    def take(self, epochs: int) -> None:
        self.run.horizon = self._epoch + epochs
        for _ in range(epochs):
            self.run.step(self._epoch)
            self._epoch += 1
        self.run.settle()
