"""Which ranks share a host, and how fast the wires between hosts are."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from thinwire.crossmesh.network import Network, hosts_of
from thinwire.links import Door
from thinwire.links.sketch import sketch

NAME = "crossmesh"
_door: Door | None = None
_hosts: dict[int, str] = {}


def default_door() -> Door:
    """This process's own, for calls that name none: opened at the first, by the ranks that call."""
    global _door
    if not dist.is_initialized():
        raise ValueError("there is no process group yet; call torch.distributed.init_process_group first")
    if _door is None:
        store = dist.PrefixStore(NAME, _get_default_store())
        _door = Door(store, name=NAME)
        store.set(f"host/{dist.get_rank()}", host_name())
    return _door


def close() -> None:
    """Close the default door, before the process group goes."""
    global _door
    if _door is not None:
        _door.close()
    _door = None
    _hosts.clear()


def default_network(ranks: tuple[int, ...]) -> Network:
    """Hosts as these ranks name them, all links alike. Waits for ranks that have not come yet.

    Other ranks' hosts are not asked for: nobody sends to them.
    """
    default_door()
    store = dist.PrefixStore(NAME, _get_default_store())
    for rank in ranks:
        if rank not in _hosts:
            _hosts[rank] = store.get(f"host/{rank}").decode()
    numbers = hosts_of({rank: _hosts[rank] for rank in ranks})
    return Network.even([numbers.get(rank, 0) for rank in range(dist.get_world_size())])


def host_name() -> str:
    """The same for ranks behind one network card: the machine as it has booted, and its network namespace."""
    named = [Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")]
    if all(path.exists() for path in named):
        return f"{named[0].read_text().strip()} {os.readlink(named[1])}"
    return os.uname().nodename


def profile(door: Door) -> Network:
    """Hosts, and measured rates between them. Every rank of the door calls this."""
    size = 256
    name = host_name().encode()[:size].ljust(size)
    told = door.told(torch.frombuffer(bytearray(name), dtype=torch.uint8), channel="profile")
    numbers = hosts_of({rank: bytes(row.tolist()).decode() for rank, row in enumerate(told)})
    return Network.of(sketch(door, torch.device("cpu")), [numbers[rank] for rank in range(door.world_size)])
