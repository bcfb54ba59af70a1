"""Start ranks and join them: local processes, emulated hosts, torchrun. Knows no models and sends nothing itself."""

from thinwire.launch.lab import Lab, LabUnavailable
from thinwire.launch.local import run
from thinwire.launch.meeting import StartFailed
from thinwire.launch.ranks import RankFailed
from thinwire.launch.seat import Member, Seat, seat_from_torchrun

__all__ = ["Lab", "LabUnavailable", "Member", "RankFailed", "Seat", "StartFailed", "run", "seat_from_torchrun"]
