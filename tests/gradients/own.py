"""A network of a user's own, for `thinwire plan gradients`."""

from typing import Any

from tests.gradients import work


def make() -> tuple[Any, Any, Any]:
    return work.built(), work.batch(0, 0), work.loss_of
