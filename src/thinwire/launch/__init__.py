"""Start ranks and join them: local processes, emulated hosts, torchrun. Knows no models and sends nothing itself."""

from typing import TYPE_CHECKING

from thinwire.later import offered
from thinwire.launch.failures import LabUnavailable, RankFailed, StartFailed
from thinwire.launch.rank_spec import RankSpec, rank_spec_from_torchrun

if TYPE_CHECKING:
    from thinwire.launch.lab import Lab
    from thinwire.launch.local import from_first_rank, run

__all__ = [
    "Lab",
    "LabUnavailable",
    "RankFailed",
    "RankSpec",
    "StartFailed",
    "from_first_rank",
    "rank_spec_from_torchrun",
    "run",
]

__getattr__ = offered(
    __name__, {"Lab": "thinwire.launch.lab", **dict.fromkeys(("from_first_rank", "run"), "thinwire.launch.local")}
)  # with torch
