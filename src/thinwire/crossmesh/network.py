"""What planners know of the wires between hosts. Pure.

A host is what shares one network card: it sends and receives at once, each at its rate. Inside a host transfers are
fast, but not free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Where nothing was measured: gigabit Ethernet. Plans depend on rates only by comparison.
USUAL_BYTES_PER_S = 118e6
USUAL_MESSAGE_S = 3e-4
USUAL_LOCAL_BYTES_PER_S = 1.5e9


@dataclass(frozen=True)
class Network:
    """`bytes_per_s[src][dst]` between hosts; `message_s` is what a message costs however small it is."""

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
        """All hosts alike."""
        hosts = max(host_of) + 1
        return Network(tuple(host_of), tuple((bytes_per_s,) * hosts for _ in range(hosts)))


def hosts_of(names: Mapping[int, str]) -> dict[int, int]:
    """Ranks' hosts, numbered in the order in which ranks name them."""
    numbers: dict[str, int] = {}
    return {rank: numbers.setdefault(name, len(numbers)) for rank, name in sorted(names.items())}
