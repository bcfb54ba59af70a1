"""Functions that ranks run: importable by name, since ranks are processes of their own."""

import os
import re
import signal
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import thinwire
from thinwire.links import Door, PeerLost, heartbeat
from thinwire.links.quick_probe import quick_probe


def add_ranks(offset: int) -> tuple[int, int]:
    total = torch.tensor([dist.get_rank() + offset])
    dist.all_reduce(total)
    return dist.get_rank(), int(total)


def present() -> int:
    """Ranks that have connected, as this one begins."""
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return int(dist.PrefixStore("thinwire/0/0", store).add("present", 0))


def inits() -> tuple[list[int], int, bool]:
    """Ranks as gathered, this machine's number for this one, and whether the group outlives the door."""
    with thinwire.init() as door:
        gathered = door.gather_json(door.rank, channel="test")
    return gathered, door.local_rank, dist.is_initialized()


def inits_and_fails(rank: int) -> None:
    with thinwire.init() as door:
        door.barrier(channel="test")
        if door.rank == rank:
            raise ZeroDivisionError(f"rank {rank} was asked to fail")
        door.barrier(channel="test")


def quickly_probed() -> dict[tuple[int, int], float]:
    """Bytes a second of each ordered pair, at a first look."""
    with Door() as door:
        return {pair: link.bytes_per_s for pair, link in quick_probe(door, torch.device("cpu")).links.items()}


def big_result(size: int) -> bytes:
    return bytes([dist.get_rank()]) * size


def fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ZeroDivisionError(f"rank {rank} was asked to fail")
    time.sleep(60)


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def fail_together() -> None:
    """After a transfer, an error of the work's own on every rank."""
    with Door() as door:
        door.all_reduce(torch.ones(4), channel="x").wait()
        raise ZeroDivisionError("the work failed")


def lose_rank_1() -> None:
    """It dies while the others wait for it, and for each other."""
    with Door() as door:
        door.all_reduce(torch.ones(4), channel="x").wait()
        if door.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        door.all_reduce(torch.ones(1 << 20), channel="x").wait()


def note_and_sleep(folder: str) -> None:
    (Path(folder) / str(dist.get_rank())).write_text(str(os.getpid()))
    time.sleep(120)


def listening_addresses() -> list[str]:
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
    addresses = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                addresses.append(fields[1].split(":")[0])
    return addresses


def every_collective() -> dict[str, object]:
    with Door() as door:
        return _every_collective(door)


def every_collective_in_two_groups() -> dict[str, object]:
    """Even and odd ranks, each group by a door of its own, side by side."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    with Door(group=groups[dist.get_rank() % 2]) as door:
        return _every_collective(door)


def die_in_a_group(folder: str) -> None:
    """Rank 3 dies; its group is told so, and the other group goes on."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    door = Door(group=groups[dist.get_rank() % 2])
    dist.barrier()
    if dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(40 if dist.get_rank() % 2 == 0 else 4000):
            door.all_reduce(torch.ones(10), channel="test").wait()
            time.sleep(0.05)
    except PeerLost as lost:
        (Path(folder) / str(dist.get_rank())).write_text(str(lost))
    else:
        (Path(folder) / str(dist.get_rank())).write_text("went on")


def door_to_others() -> str:
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        return ""
    try:
        Door(group=group)
    except ValueError as refused:
        return str(refused)
    return "opened"


def _every_collective(door: Door) -> dict[str, object]:
    """Each collective once, with sizes that differ by rank; what came, and what the books say."""
    n, me = door.world_size, door.rank
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


def lose_a_rank(collective: str, how: str, limit_s: float, folder: str) -> None:
    """Rank 1 is killed in the middle of one of many, or stays away; the others note what they are told."""
    door = Door(limit_s=limit_s)
    dist.barrier()
    door.step = 7
    if door.rank == 1 and how == "killed":
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif door.rank == 1:
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)
    start = time.monotonic()
    try:
        for _ in range(100_000):
            once(door, collective, torch.zeros(4_000_000, dtype=torch.uint8))
    except PeerLost as lost:
        (Path(folder) / str(door.rank)).write_text(f"{time.monotonic() - start:.1f} {lost}")
        raise


def once(door: Door, collective: str, data: torch.Tensor) -> None:
    """`send`: everybody to rank 1. `receive`: everybody from it."""
    n, me = door.world_size, door.rank
    others = [peer for peer in range(n) if peer != 1]
    if collective == "all_to_all":
        door.all_to_all([data] * n, [data.numel()] * n, channel="test").wait()
    elif collective == "all_gather":
        door.all_gather(data, [data.numel()] * n, channel="test").wait()
    elif collective == "all_reduce":
        door.all_reduce(data, channel="test").wait()
    elif collective == "broadcast":
        door.broadcast(data, 0, channel="test").wait()
    elif (collective == "send") == (me == 1):
        for transfer in [door.receive(data.numel(), peer, channel="test") for peer in (others if me == 1 else [1])]:
            transfer.wait()
    else:
        for sent in [door.send(data, peer, channel="test") for peer in (others if me == 1 else [1])]:
            sent.wait()


def pause_then_exchange(limit_s: float, pause_s: float) -> int:
    """Everybody computes for longer than the limit, rank 1 a little longer still: nobody is lost."""
    with Door(limit_s=limit_s) as door:
        time.sleep(pause_s + door.rank)
        x = torch.ones(1_000_000)
        return int(door.all_reduce(x, channel="test").wait()[0])


def open_late(seconds: float, folder: str) -> bool:
    """Rank 1's door opens late; an error on rank 0 before that comes out at once. Whether it was open by then."""
    late = Path(folder) / "late"
    if dist.get_rank() == 1:
        time.sleep(seconds)
        late.touch()
        Door().close()
        return True
    try:
        with Door():
            raise ZeroDivisionError
    except ZeroDivisionError:
        return late.exists()


def die_before_the_door(folder: str) -> None:
    """Rank 2 never opens its door."""
    if dist.get_rank() == 2:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    door = Door()
    try:
        once(door, "all_to_all", torch.zeros(1000, dtype=torch.uint8))
    except PeerLost as lost:
        (Path(folder) / str(door.rank)).write_text(f"0 {lost}")
        raise


def leave_early(limit_s: float) -> int:
    """Rank 2 leaves; the other two go on with messages for longer than the limit, then ask for too much."""
    door = Door(limit_s=limit_s)
    if door.rank == 2:
        door.close()
        time.sleep(limit_s + 8)
        return 0
    peer = 1 - door.rank
    for _ in range(int(limit_s) + 3):
        time.sleep(1)
        sent = door.send(torch.zeros(10, dtype=torch.uint8), peer, channel="test")
        door.receive(10, peer, channel="test").wait()
        sent.wait()
    try:
        door.all_reduce(torch.ones(3), channel="test").wait()
    except PeerLost as lost:
        return str(lost).startswith("rank 2 has left, on channel 'test'")
    return -1


def cross_channels_and_doors() -> list[list[int]]:
    """Two channels posted in opposite order, and two doors: each gets its own."""
    first, second = Door(), Door()
    n, me = dist.get_world_size(), dist.get_rank()
    ways = [(first, "a", 1), (first, "b", 2), (second, "a", 3)]
    posted = {}
    for door, channel, value in ways if me == 0 else reversed(ways):
        data = [torch.full((100_000,), value, dtype=torch.uint8)] * n
        posted[value] = door.all_to_all(data, [100_000] * n, channel=channel)
    received = [[int(part.max()) for part in posted[value].wait()] for value in (1, 2, 3)]
    first.close()
    second.close()
    return received


def mismatched_sizes(limit_s: float) -> str:
    """Rank 0 sends ten bytes that rank 1 does not expect: an error, not a hang."""
    with Door(limit_s=limit_s) as door:
        mine = [torch.zeros(0, dtype=torch.uint8), torch.zeros(10 * (door.rank == 0), dtype=torch.uint8)]
        try:
            door.all_to_all(mine if door.rank == 0 else mine[::-1], [0, 0], channel="test").wait()
        except PeerLost as lost:
            return str(lost)
        time.sleep(limit_s + 4)
    return ""


def small_kinds() -> list[object]:
    """Every type travels as bytes, small and large; mistakes are the caller's own, at once."""
    n, me = dist.get_world_size(), dist.get_rank()
    received: list[object] = []
    with Door() as door:
        for dtype in (torch.int16, torch.bfloat16, torch.float8_e4m3fn):
            for size in (3, 5000):
                x = torch.full((size,), float(me + 1)).to(dtype)
                received.append(float(door.broadcast(x, 0, channel="test").wait().float().max()))
        for wrong in (
            lambda: door.broadcast(torch.zeros(4, 4).t(), 0, channel="test"),
            lambda: door.broadcast(torch.zeros(4), n, channel="test"),
            lambda: door.all_to_all([torch.zeros(1, dtype=torch.uint8)] * n, [5] * n, channel="test"),
            lambda: door.send(torch.zeros(4), me, channel="test"),
        ):
            try:
                wrong()
            except ValueError as error:
                received.append(str(error))
    return received


def bytes_by_address(collective: str, size: int) -> tuple[dict[int, int], dict[int, int]]:
    """One collective in a lab: what the books say of each peer, and what the kernel does (`ss`, by address)."""
    with Door() as door:
        once(door, "all_to_all", torch.zeros(8, dtype=torch.uint8))
        before = _sent_by_address()
        door.books.take()
        once(door, collective, torch.zeros(size, dtype=torch.uint8))
        booked = dict(door.books.take()["test"].bytes_to)
        dist.barrier()
        after = _sent_by_address()
    return booked, {peer: after[peer] - before.get(peer, 0) for peer in after}


def _sent_by_address() -> dict[int, int]:
    shown = subprocess.run(["ss", "-tinH"], capture_output=True, text=True, check=True).stdout
    bytes_to: dict[int, int] = {}
    for peer, sent in re.findall(r"10\.77\.0\.(\d+)\]?:\d+ *\n[^\n]*bytes_sent:(\d+)", shown):
        bytes_to[int(peer) - 1] = bytes_to.get(int(peer) - 1, 0) + int(sent)
    return bytes_to


def exchange_content(size: int, repeats: int, folder: str) -> list[float]:
    """All-to-alls whose bytes are checked; the first rank notes that they have begun. Seconds of each."""
    n, me = dist.get_world_size(), dist.get_rank()
    seconds = []
    with Door() as door:
        for repeat in range(repeats):
            made = torch.Generator().manual_seed(repeat)
            everything = torch.randint(0, 256, (n, size), dtype=torch.uint8, generator=made)
            dist.barrier()
            start = time.perf_counter()
            if me == 0:
                (Path(folder) / "begun").touch()
            parts = door.all_to_all([everything[me]] * n, [size] * n, channel="test").wait()
            seconds.append(time.perf_counter() - start)
            assert all(torch.equal(part, everything[peer]) for peer, part in enumerate(parts))
    return seconds


def exchange_until_lost(limit_s: float, folder: str) -> str:
    """Exchange until somebody is lost; what was said."""
    door = Door(limit_s=limit_s)
    (Path(folder) / str(door.rank)).touch()
    try:
        for _ in range(100_000):
            once(door, "all_to_all", torch.zeros(100_000, dtype=torch.uint8))
    except PeerLost as lost:
        return str(lost)
    return ""


def exchange_and_time(size: int, repeats: int) -> list[float]:
    """Seconds of each all-to-all of `size` bytes to every peer."""
    n = dist.get_world_size()
    data = torch.zeros(size, dtype=torch.uint8)
    seconds = []
    with Door() as door:
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            door.all_to_all([data] * n, [size] * n, channel="test").wait()
            seconds.append(time.perf_counter() - start)
    return seconds


def send_and_time(source: int, target: int, size: int) -> float:
    """Median seconds of a message from source to target; elsewhere 0."""
    seconds = [0.0]
    with Door() as door:
        for _ in range(5):
            dist.barrier()
            start = time.perf_counter()
            if door.rank == source:
                door.send(torch.zeros(size, dtype=torch.uint8), target, channel="test").wait()
            elif door.rank == target:
                door.receive(size, source, channel="test").wait()
                seconds.append(time.perf_counter() - start)
        dist.barrier()
    return sorted(seconds)[len(seconds) // 2]


def load_slowly(limit_s: float, slow_s: float) -> float:
    """Rank 1 opens its door late and loads for long, and goes on at once. How long all were in there."""
    if dist.get_rank() == 1:
        time.sleep(limit_s + 3)
    with Door(limit_s=limit_s) as door:
        start = time.monotonic()
        with door.loading():
            time.sleep(slow_s if door.rank == 1 else 0)
        took_s = time.monotonic() - start
        door.all_reduce(torch.ones(3), channel="test").wait()
    return took_s


def load_until_lost(how: str, folder: str) -> None:
    """Rank 1 does not come out of loading; the others note what they are told."""
    heartbeat.LOADING_SILENCE_S = 4.0
    door = Door(limit_s=2.0)
    dist.barrier()
    try:
        with door.loading():
            if door.rank == 1:
                time.sleep(2)
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ZeroDivisionError
    except PeerLost as lost:
        (Path(folder) / str(dist.get_rank())).write_text(str(lost))
        raise
    except ZeroDivisionError:
        door.close()
        time.sleep(8)


def wait_longer_than_the_backend(limit_s: float) -> int:
    """Rank 1 comes later than the process group's own limit, and sooner than the door's."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=3))
    with Door(group=group, limit_s=limit_s) as door:
        for collective in ("all_reduce", "all_to_all", "message"):
            time.sleep(6 * dist.get_rank())
            data = torch.zeros(100_000, dtype=torch.uint8)
            if collective == "message" and dist.get_rank() == 1:
                door.send(data, 0, channel="test").wait()
            elif collective == "message":
                door.receive(data.nbytes, 1, channel="test").wait()
            else:
                once(door, collective, data)
    return dist.get_rank()

