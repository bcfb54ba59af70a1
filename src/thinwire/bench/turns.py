"""Run a method's training in turns of some epochs."""

from thinwire.training.run import Run


class Turns:
    """Each turn ends by waiting for transfers under way, so that they don't slow down another method's turn."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._epoch = 0

    def take(self, epochs: int) -> None:
        self.run.horizon = self._epoch + epochs
        for _ in range(epochs):
            self.run.step(self._epoch)
            self._epoch += 1
        self.run.settle()
