"""Find out which ranks share a host, and measure how fast the links between hosts are."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from thinwire.crossmesh.network import USUAL_LOCAL_BYTES_PER_S, USUAL_MESSAGE_S, Network, hosts_of
from thinwire.links import Door
from thinwire.links.quick_probe import REPEATS, rates_into

NAME = "crossmesh"
CHANNEL = "profile"
BURST = 64
CPU = torch.device("cpu")
_door: Door | None = None
_opened = 0
_hosts: dict[int, str] = {}


def default_door() -> Door:
    """This process's door, for calls without one. Opened at the first such call, on the ranks that make it."""
    global _door, _opened
    if not dist.is_initialized():
        raise ValueError("there is no process group yet; call torch.distributed.init_process_group first")
    if _door is None:
        store = dist.PrefixStore(NAME, _get_default_store())
        # A new name per door: the store still holds what an earlier door wrote, above all that its ranks closed it.
        _door = Door(name=f"{NAME} {_opened}")
        _opened += 1
        store.set(f"host/{dist.get_rank()}", host_name())
    return _door


def close() -> None:
    """Close the default door. Call it before the process group is destroyed."""
    global _door
    if _door is not None:
        _door.close()
    _door = None
    _hosts.clear()


def default_network(ranks: tuple[int, ...]) -> Network:
    """A network of these ranks' hosts, with equal links. Waits for ranks that have not opened their door yet.

    The hosts of other ranks are not asked for, since nothing is sent to them.
    """
    default_door()
    store = dist.PrefixStore(NAME, _get_default_store())
    for rank in ranks:
        if rank not in _hosts:
            _hosts[rank] = store.get(f"host/{rank}").decode()
    numbers = hosts_of({rank: _hosts[rank] for rank in ranks})
    return Network.even([numbers.get(rank, 0) for rank in range(dist.get_world_size())])


def host_name() -> str:
    """A name shared by all ranks behind one network card: the machine's boot id and the network namespace."""
    paths = [Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")]
    if all(path.exists() for path in paths):
        return f"{paths[0].read_text().strip()} {os.readlink(paths[1])}"
    return os.uname().nodename


def profile(door: Door) -> Network:
    """Hosts, and measured rates between them. One rank of each host measures. Every rank of the door calls this."""
    size = 256
    name = host_name().encode()[:size].ljust(size)
    gathered = door.gather(torch.frombuffer(bytearray(name), dtype=torch.uint8), channel=CHANNEL)
    numbers = hosts_of({rank: bytes(row.tolist()).decode() for rank, row in enumerate(gathered)})
    host_of = tuple(numbers[rank] for rank in range(door.world_size))
    speakers = [host_of.index(host) for host in range(max(host_of) + 1)]
    rates = [[USUAL_LOCAL_BYTES_PER_S] * len(speakers) for _ in speakers]
    for distance in range(1, len(speakers)):
        pairs = {speakers[at]: speakers[(at + distance) % len(speakers)] for at in range(len(speakers))}
        for dst, rate in rates_into(door, pairs, CPU).items():
            src = next(rank for rank, heir in pairs.items() if heir == dst)
            rates[host_of[src]][host_of[dst]] = rate
    # Inside a host: measured between two ranks of the first host that has two.
    inside = next(([rank, other] for rank in speakers for other in _mates(rank, host_of)), None)
    local = rates_into(door, {inside[0]: inside[1]}, CPU)[inside[1]] if inside else USUAL_LOCAL_BYTES_PER_S
    wait_s = _message_s(door, speakers[:2]) if len(speakers) > 1 else USUAL_MESSAGE_S
    return Network(host_of, tuple(map(tuple, rates)), wait_s, local)


def _mates(rank: int, host_of: Sequence[int]) -> list[int]:
    return [other for other, host in enumerate(host_of) if host == host_of[rank] and other != rank]


def _message_s(door: Door, pair: Sequence[int]) -> float:
    """Seconds per message when many small ones follow each other: the cost of a chunk."""
    least_s = float("inf")
    data = torch.zeros(BURST * 64, dtype=torch.uint8)
    for number in range(REPEATS):
        door.barrier(channel=CHANNEL)
        if door.rank in pair:
            first = door.rank == pair[0]
            source, heirs = (None, pair[1:]) if first else (pair[0], [])
            burst = door.relay(data, source, heirs, channel=CHANNEL, key="burst", repeat=number, chunk_bytes=64)
            burst.wait()
            least_s = min(least_s, burst.seconds / BURST)
    return float(door.gather(least_s, channel=CHANNEL).min())
