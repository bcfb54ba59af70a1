"""Start ranks and join them: local processes, emulated hosts, torchrun. Knows no models and sends nothing itself."""

from typing import TYPE_CHECKING

from thinwire.later import offered
from thinwire.launch.failures import LabUnavailable, RankFailed, StartFailed
from thinwire.launch.seat import Member, Seat, seat_from_torchrun

if TYPE_CHECKING:
    from thinwire.launch.lab import Lab
    from thinwire.launch.local import run

__all__ = ["Lab", "LabUnavailable", "Member", "RankFailed", "Seat", "StartFailed", "run", "seat_from_torchrun"]

__getattr__ = offered(__name__, {"Lab": "thinwire.launch.lab", "run": "thinwire.launch.local"})  # with torch
