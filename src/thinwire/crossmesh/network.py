"""What planners know about the links between hosts. Pure.

A host is the group of ranks behind one network card. It sends and receives at the same time, each at full rate.
Transfers inside a host are fast, but not free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Defaults if nothing was measured: gigabit Ethernet. Plans depend only on how rates compare.
USUAL_BYTES_PER_S = 118e6
USUAL_MESSAGE_S = 3e-4
USUAL_LOCAL_BYTES_PER_S = 1.5e9


@dataclass(frozen=True)
class Network:
    """`bytes_per_s[src][dst]` between hosts; `message_s` is the fixed cost of a message, however small."""

    host_of: tuple[int, ...]  # by rank
    bytes_per_s: tuple[tuple[float, ...], ...]
    message_s: float = USUAL_MESSAGE_S
    local_bytes_per_s: float = USUAL_LOCAL_BYTES_PER_S

    @property
    def num_hosts(self) -> int:
        return len(self.bytes_per_s)

    def rate(self, src: int, dst: int) -> float:
        return self.local_bytes_per_s if src == dst else self.bytes_per_s[src][dst]

    @staticmethod
    def even(host_of: Sequence[int], bytes_per_s: float = USUAL_BYTES_PER_S) -> "Network":
        """A network whose links between hosts are all equal."""
        hosts = max(host_of) + 1
        return Network(tuple(host_of), tuple((bytes_per_s,) * hosts for _ in range(hosts)))


def hosts_of(names: Mapping[int, str]) -> dict[int, int]:
    """Each rank's host number, from host names by rank. Hosts are numbered in order of their lowest rank."""
    numbers: dict[str, int] = {}
    return {rank: numbers.setdefault(name, len(numbers)) for rank, name in sorted(names.items())}
