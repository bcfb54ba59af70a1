"""Functions that ranks run: importable, since ranks are spawned."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.launch import Member
from thinwire.links import Door, PeerLost


def add_ranks(member: Member, offset: int) -> tuple[int, int]:
    total = torch.tensor([member.rank + offset])
    dist.all_reduce(total)
    return member.rank, int(total)


def big_result(member: Member, size: int) -> bytes:
    return bytes([member.rank]) * size


def fail_on(member: Member, rank: int) -> None:
    if member.rank == rank:
        raise ZeroDivisionError(f"rank {rank} was asked to fail")
    time.sleep(60)


def die_on(member: Member, rank: int) -> None:
    if member.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def note_and_sleep(member: Member, folder: str) -> None:
    (Path(folder) / str(member.rank)).write_text(str(os.getpid()))
    time.sleep(120)


def listening_addresses(member: Member) -> list[str]:
    """Addresses this process listens on, by the kernel's word."""
    dist.barrier()
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].split(":")[0])
    return found


def every_collective(member: Member) -> dict[str, object]:
    """Each collective once, with sizes that differ by rank; what came, and what the books say."""
    n, me = member.world_size, member.rank
    with Door(member.store) as door:
        outgoing = [torch.full((3 * me + peer,), 10 * me + peer, dtype=torch.uint8) for peer in range(n)]
        sizes = [3 * peer + me for peer in range(n)]
        handles = door.all_to_all(outgoing, sizes, channel="halo")
        gathered = door.all_gather(torch.arange(me + 1, dtype=torch.uint8), list(range(1, n + 1)), channel="ids")
        even = door.all_gather(torch.tensor([me], dtype=torch.int64), [8] * n, channel="even")
        reduced = door.all_reduce(torch.full((1000,), float(me + 1)), channel="gradients")
        spread = door.broadcast(torch.full((5,), float(me)), n - 1, channel="weights")
        sent, received = None, None
        if n > 1:
            sent = door.send(torch.full((7,), me, dtype=torch.uint8), (me + 1) % n, channel="ring")
            received = door.receive(7, (me - 1) % n, channel="ring")
        result: dict[str, object] = {
            "halo": [part.tolist() for part in handles.wait()],
            "ids": [part.tolist() for part in gathered.wait()],
            "even": [int(part.view(torch.int64)) for part in even.wait()],
            "gradients": float(reduced.wait()[0]),
            "weights": float(spread.wait()[0]),
        }
        if sent is not None and received is not None:
            result["ring"] = received.wait().tolist()
            sent.wait()
        result["books"] = {channel: book.to_json() for channel, book in door.books.take().items()}
    return result


def lose_a_rank(member: Member, collective: str, how: str, limit_s: float, folder: str) -> None:
    """Rank 1 is killed, stopped, or loops in step 7 while the others wait in `collective`: they note what they are told."""
    n, me = member.world_size, member.rank
    door = Door(member.store, limit_s=limit_s)
    dist.barrier()
    door.step = 7
    data = torch.zeros(4_000_000, dtype=torch.uint8)
    start = time.monotonic()
    if me == 1:
        time.sleep(0.5)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)
    try:
        if collective == "all_to_all":
            door.all_to_all([data] * n, [data.numel()] * n, channel="test").wait()
        elif collective == "all_gather":
            door.all_gather(data, [data.numel()] * n, channel="test").wait()
        elif collective == "all_reduce":
            door.all_reduce(data, channel="test").wait()
        elif collective == "broadcast":
            door.broadcast(data, 1, channel="test").wait()
        else:
            door.receive(data.numel(), 1, channel="test").wait()
    except PeerLost as lost:
        (Path(folder) / str(me)).write_text(f"{time.monotonic() - start:.1f} {lost}")
        raise


def exchange_and_time(member: Member, size: int, repeats: int) -> list[float]:
    """Seconds of each all-to-all of `size` bytes to every peer."""
    n = member.world_size
    data = torch.zeros(size, dtype=torch.uint8)
    seconds = []
    with Door(member.store) as door:
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            door.all_to_all([data] * n, [size] * n, channel="test").wait()
            seconds.append(time.perf_counter() - start)
    return seconds


def send_and_time(member: Member, source: int, target: int, size: int) -> float:
    """Median seconds of a message from source to target; elsewhere 0."""
    seconds = [0.0]
    with Door(member.store) as door:
        for _ in range(5):
            dist.barrier()
            start = time.perf_counter()
            if member.rank == source:
                door.send(torch.zeros(size, dtype=torch.uint8), target, channel="test").wait()
            elif member.rank == target:
                door.receive(size, source, channel="test").wait()
                seconds.append(time.perf_counter() - start)
        dist.barrier()
    return sorted(seconds)[len(seconds) // 2]
