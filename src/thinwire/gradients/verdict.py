"""Whether a codec that `auto` has chosen costs more than it saves: its progress per second against milder ones. Pure.

Progress is measured in the run (`progress.py`), the time of steps is predicted (`plan.rivals`).
"""

from thinwire.gradients.algorithms import LEAST_GAIN, NONE
from thinwire.gradients.planning import Plan
from thinwire.gradients.progress import Progress

# Windows in a row: a single one may be bad by chance, or just after a change of learning rate.
PATIENCE = 2


class Verdict:
    """Whether a plan's codecs stay. A codec that the user has named has no rivals, and always stays."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.behind = 0  # windows in a row
        # The mildest codec, unless the next one is enough faster.
        self.milder = NONE
        for spec, step_s in plan.rivals.items():
            if step_s * LEAST_GAIN <= plan.rivals[self.milder]:
                self.milder = spec

    def falls_back(self, progress: Progress) -> bool:
        """Whether to give the codecs up after this window."""
        if not self._plan.rivals or self._plan.predicted is None:
            return False
        # A step of a milder codec counts as full progress.
        is_behind = progress.share / self._plan.predicted.step_s < 1 / self._plan.rivals[self.milder]
        self.behind = self.behind + 1 if is_behind else 0
        # A window without any progress is more than chance.
        return self.behind >= PATIENCE or progress.share <= 0

    def words(self, progress: Progress) -> str:
        """The warning to show."""
        assert self._plan.predicted is not None
        codecs = ",".join(sorted({group.codec for group in self._plan.groups}))
        step_ms, milder_ms = 1e3 * self._plan.predicted.step_s, 1e3 * self._plan.rivals[self.milder]
        return (
            f"codec auto falls back from {codecs} to {self.milder} in step {progress.step}: a step made "
            f"{progress.share:.0%} of the progress of an uncompressed one (cosine {progress.cosine:.2f}, norm "
            f"{progress.norm_ratio:.2f} of its, over {progress.steps} steps), and is predicted to take {step_ms:.1f} "
            f"ms instead of {milder_ms:.1f}. "
            f'To keep it, name it: plan(profile, codec="{codecs}")'
        )
