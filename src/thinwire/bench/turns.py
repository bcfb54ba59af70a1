"""A method's run, some epochs at a time."""

from thinwire.training.run import Run


class Turns:
    """A turn ends by waiting for what is under way, so that no other method's turn pays for it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._epoch = 0

    def take(self, epochs: int) -> None:
        self.run.horizon = self._epoch + epochs
        for _ in range(epochs):
            self.run.step(self._epoch)
            self._epoch += 1
        self.run.settle()
