"""Strategies to send a piece from its sender to all ranks that need it, and how long each takes. Pure.

With t the time of the piece over one link, A receiving hosts and B ranks on each:

send_recv   to every rank separately                                     A B t
allgather   1/B to each rank of a host, which exchange it inside         A t
broadcast   from host to host in K chunks, each host passing on while it receives, then from rank to rank inside
            t + (A - 1) t / K, and K messages; the best K is sqrt((A - 1) t / message_s)
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thinwire.crossmesh.layout import Region, cut, region_size
from thinwire.crossmesh.network import Network

SEND_RECV, ALLGATHER, BROADCAST = "send_recv", "allgather", "broadcast"
# Smaller chunks cost more in waking threads than they save in waiting.
LEAST_CHUNK_BYTES = 65_536

# The ranks of each receiving host. Hosts and ranks are in the order in which they pass data on.
Lines = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Branch:
    """A part of the piece, and its lines: sent from each line's first rank to the next line's, and down the line."""

    region: Region
    lines: Lines

    def edges(self, sender: int) -> tuple[tuple[int, int], ...]:
        """Edges (from, to). A rank sends to the next host before its neighbour, since that path is longer."""
        between_hosts, last = [], sender
        for line in self.lines:
            between_hosts.append((last, line[0]))
            last = line[0]
        return (*between_hosts, *(pair for line in self.lines for pair in itertools.pairwise(line)))


@dataclass(frozen=True)
class Haul:
    """What is sent in one go: `hosts` receive all branches, which together are the piece."""

    hosts: tuple[int, ...]
    branches: tuple[Branch, ...]

    def chunks(self, size_bytes: int, sender: int, network: Network) -> int:
        """The best number of chunks to cut a branch into."""
        hops, local_s = self._hops_s(size_bytes, sender, network)
        extra_s = hops - self._slowest_s(size_bytes, sender, network) + local_s
        best = math.sqrt(max(extra_s, 0.0) / network.message_s)
        return max(1, min(round(best), size_bytes // LEAST_CHUNK_BYTES))

    def seconds(self, size_bytes: int, sender: int, network: Network) -> float:
        """Seconds from host `sender`, with no other traffic."""
        hops_s, local_s = self._hops_s(size_bytes, sender, network)
        slowest_s = self._slowest_s(size_bytes, sender, network)
        chunks = self.chunks(size_bytes, sender, network)
        hops = max(sum(map(len, branch.lines)) for branch in self.branches)
        messages = chunks * len(self.branches) + hops - 1
        return slowest_s + (hops_s - slowest_s + local_s) / chunks + messages * network.message_s

    def _rates(self, sender: int, network: Network) -> list[float]:
        return [network.rate(src, dst) for src, dst in zip((sender, *self.hosts), self.hosts, strict=False)]

    def _slowest_s(self, size_bytes: int, sender: int, network: Network) -> float:
        return size_bytes / min(self._rates(sender, network))

    def _hops_s(self, size_bytes: int, sender: int, network: Network) -> tuple[float, float]:
        """Seconds if every hop waited for the whole piece: between hosts, and inside the longest line."""
        inside = max(len(line) - 1 for branch in self.branches for line in branch.lines)
        between = sum(size_bytes / rate for rate in self._rates(sender, network))
        return between, inside * size_bytes / len(self.branches) / network.local_bytes_per_s


def send_recv(region: Region, lines: Mapping[int, Sequence[int]]) -> list[Haul]:
    return [Haul((host,), (Branch(region, ((rank,),)),)) for host, ranks in lines.items() for rank in ranks]


def allgather(region: Region, lines: Mapping[int, Sequence[int]]) -> list[Haul]:
    return [Haul((host,), _shares(region, ranks)) for host, ranks in lines.items()]


def _shares(region: Region, ranks: Sequence[int]) -> tuple[Branch, ...]:
    """Part i goes to rank i first, then round all ranks."""
    parts = cut(region, len(ranks)) if region_size(region) else [region]
    return tuple(Branch(part, ((*ranks[index:], *ranks[:index]),)) for index, part in enumerate(parts))


def broadcast(region: Region, lines: Mapping[int, Sequence[int]]) -> list[Haul]:
    return [Haul(tuple(lines), (Branch(region, tuple(map(tuple, lines.values()))),))]


STRATEGIES = {SEND_RECV: send_recv, ALLGATHER: allgather, BROADCAST: broadcast}
