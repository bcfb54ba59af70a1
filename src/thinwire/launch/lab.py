"""Hosts emulated on one Linux machine: a network namespace each, joined by veth and a bridge, at known rates.

Real TCP and real gloo; nothing of it is visible outside the namespaces, the bridge and the store included. Names carry
the owner's process id and start time, so that labs live side by side and a crashed one is known by its dead owner.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from thinwire.launch.failures import LabUnavailable
from thinwire.launch.namespaces import FOLDER, enter_namespace
from thinwire.launch.rank_spec import RankSpec, rank_spec_from_torchrun

if TYPE_CHECKING:
    import torch.distributed as dist

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
NAME = re.compile(r"tw(?P<pid>\d+)x(?P<started>\d+)n\d+(?:sw|h\d+)")
SWITCH_ADDRESS = "10.77.0.254"
NETWORK = "10.77.0.0/24"
MOST_HOSTS = 250
# How much a connection may have under way: what its host sends in a second, within bounds.
WINDOW_S = 1.0
LEAST_WINDOW_BYTES = 1 << 18
MOST_WINDOW_BYTES = 1 << 23
# Queues never drop: what all connections of so many ranks a host have under way fits, with headers. A loss would add
# time-outs that no rate explains.
QUEUED_RANKS = 4
QUEUE_SHARE = 1.25
SEGMENT_BYTES = 1448
# A window that waits in a queue is not lost. The kernel's own limit of 0.2 s would send it again.
LEAST_RETRY_S = 3
# A bucket of 1 ms holds the rate within a few per cent (timers wake late) and lets only small messages pass unshaped.
BURST_S = 0.001
LEAST_BURST_BYTES = 5_000
LEAST_TRAIN_BYTES = 2_048
MOST_TRAIN_BYTES = 65_536

_labs = count()


@dataclass(frozen=True)
class Traffic:
    """A host's own interface, by the kernel's counters: payload, headers, acknowledgements and all."""

    sent_bytes: int
    received_bytes: int


def parse_rate(rate: str) -> int:
    """'100mbit' -> bits per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", rate.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"rate {rate!r}: give a number and bit, kbit, mbit or gbit, for example 100mbit")
    return int(float(match[1]) * UNITS[match[2]])


def missing() -> str | None:
    """Why no lab can run here; None where one can."""
    if not Path("/proc/self/ns/net").exists():
        return "emulated hosts need Linux with network namespaces; use local workers instead (--workers)"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"emulated hosts need iproute2, and there is no `{tool}`; install it (apt-get install iproute2)"
    if os.geteuid() != 0:
        return "emulated hosts need root, to make network namespaces; run as root, or use local workers (--workers)"
    return None


class Lab:
    """`hosts` emulated hosts while inside the `with` block, all at `rate`, or host h at rates[h]."""

    def __init__(self, hosts: int, *, rate: str = "1gbit", rates: Sequence[str] | None = None) -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise ValueError(f"hosts is {hosts}; give 1 to {MOST_HOSTS}")
        self.rates = list(rates) if rates is not None else [rate] * hosts
        if len(self.rates) != hosts:
            raise ValueError(f"{len(self.rates)} rates for {hosts} hosts; give one for each host, or one for all")
        for host_rate in self.rates:
            parse_rate(host_rate)
        self.hosts = hosts
        prefix = f"tw{os.getpid()}x{_started(os.getpid())}n{next(_labs)}"
        self.switch = f"{prefix}sw"
        self.namespaces = [f"{prefix}h{host}" for host in range(hosts)]

    def __enter__(self) -> "Lab":
        problem = missing()
        if problem is None and rank_spec_from_torchrun() is not None:
            problem = "a lab starts its own ranks, and torchrun has already started some; run without torchrun"
        if problem is not None:
            raise LabUnavailable(problem)
        sweep()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def run(self, work: Callable[[*Ts], T], *arguments: *Ts, ranks_per_host: int = 1) -> list[T]:
        """`work(*arguments)` on every rank; rank r lives on host r // ranks_per_host."""
        from thinwire.launch.ranks import run_ranks  # with torch

        world_size = self.hosts * ranks_per_host
        threads = max(1, (os.cpu_count() or 1) // world_size)
        store, port = self._serve_store()
        rank_specs = [
            RankSpec(
                rank=rank,
                world_size=world_size,
                local_rank=rank % ranks_per_host,
                store_address=SWITCH_ADDRESS,
                store_port=port,
                threads=threads,
                interface="eth0",
                namespace=self.namespaces[rank // ranks_per_host],
                cores=cores_of(rank // ranks_per_host, self.hosts, sorted(os.sched_getaffinity(0))),
            )
            for rank in range(world_size)
        ]
        try:
            return run_ranks(work, arguments, rank_specs)
        finally:
            del store  # stops serving

    def traffic(self, host: int) -> Traffic:
        shown = _command("ip", "-n", self.namespaces[host], "-s", "-j", "link", "show", "eth0")
        counters = json.loads(shown)[0]["stats64"]
        return Traffic(sent_bytes=counters["tx"]["bytes"], received_bytes=counters["rx"]["bytes"])

    def set_link(self, host: int, *, up: bool) -> None:
        """Pull a host's plug, or put it back."""
        _command("ip", "-n", self.switch, "link", "set", f"h{host}", "up" if up else "down")

    def _build(self) -> None:
        _batch("ip", None, [f"netns add {name}" for name in (self.switch, *self.namespaces)])
        switch = [
            "link set lo up",
            "link add br0 type bridge",
            f"addr add {SWITCH_ADDRESS}/24 dev br0",
            "link set br0 up",
        ]
        for host, namespace in enumerate(self.namespaces):
            switch.append(f"link add h{host} type veth peer name eth0 netns {namespace}")
            switch.append(f"link set h{host} gso_max_size {_train_bytes(self.rates[host])} master br0 up")
        _batch("ip", self.switch, switch)
        shaped = [_shape(f"h{host}", rate, self.rates) for host, rate in enumerate(self.rates)]
        _batch("tc", self.switch, shaped)  # traffic into the hosts
        for host, namespace in enumerate(self.namespaces):
            commands = [
                "link set lo up",
                f"addr add {address(host)}/24 dev eth0",
                f"link set eth0 gso_max_size {_train_bytes(self.rates[host])} up",
                _route(self.rates[host]),
            ]
            _batch("ip", namespace, commands)
            _batch("tc", namespace, [_shape("eth0", self.rates[host], self.rates)])  # traffic out of them
            _inside(namespace, partial(_plain_tcp, self.rates[host]))
            cores = cores_of(host, self.hosts, sorted(os.sched_getaffinity(0)))
            _keep_order(namespace, "eth0", cores)
            _keep_order(self.switch, f"h{host}", cores)

    def _remove(self) -> None:
        for name in (*self.namespaces, self.switch):
            _delete(name)

    def _serve_store(self) -> "tuple[dist.TCPStore, int]":
        from thinwire.launch.store import serve_store  # with torch

        with _without_stderr():
            return _inside(self.switch, lambda: serve_store(SWITCH_ADDRESS))


def cores_of(host: int, hosts: int, cores: Sequence[int]) -> frozenset[int] | None:
    """A host's own share of this machine's cores, so that hosts wake each other in the same time, run for run.

    None where they can't be shared out evenly: the kernel shares them better.
    """
    if len(cores) % hosts == 0:
        return frozenset(cores[host::hosts])
    if hosts % len(cores) == 0:
        return frozenset({cores[host % len(cores)]})
    return None


def sweep() -> list[str]:
    """Remove what labs of dead processes left behind; the names removed."""
    left = []
    folder = Path(FOLDER)
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = NAME.fullmatch(entry.name)
        if match is not None and _started(int(match["pid"])) != int(match["started"]) and _delete(entry.name):
            left.append(entry.name)
    return left


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 where it is dead. (Process ids come round again.)"""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if state in "ZX" else int(fields[18])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _shape(device: str, rate: str, all_rates: Sequence[str]) -> str:
    queue = int(QUEUE_SHARE * QUEUED_RANKS**2 * sum(map(_window_bytes, all_rates)))
    burst = _burst_bytes(rate)
    return f"qdisc add dev {device} root tbf rate {parse_rate(rate)}bit burst {burst} limit {min(queue, 2**31)}"


def _burst_bytes(rate: str) -> int:
    return max(LEAST_BURST_BYTES, int(parse_rate(rate) / 8 * BURST_S))


def _train_bytes(rate: str) -> int:
    """As many frames as go through the kernel in one piece: half a bucket's worth.

    A larger one the bucket takes apart, and each frame then costs as much as a whole train: at 150 Mbit/s a third of
    all time, for what on real hosts the network card does.
    """
    return max(LEAST_TRAIN_BYTES, min(MOST_TRAIN_BYTES, _burst_bytes(rate) // 2))


def _window_bytes(rate: str) -> int:
    return min(MOST_WINDOW_BYTES, max(LEAST_WINDOW_BYTES, int(parse_rate(rate) / 8 * WINDOW_S)))


def _route(rate: str) -> str:
    """Windows are open from the start, as on a connection that has long been in use.

    Where they open by and by, data both ways make acknowledgements wait behind data, and an exchange takes up to 1.4
    times what its bytes need, and differs from run to run.
    """
    segments = _window_bytes(rate) // SEGMENT_BYTES
    return f"route replace {NETWORK} dev eth0 initcwnd {segments} initrwnd {segments} rto_min {LEAST_RETRY_S}s"


def _plain_tcp(rate: str) -> None:
    """The same TCP on every machine, with nothing forgotten between two messages."""
    settings = Path("/proc/sys/net/ipv4")
    (settings / "tcp_congestion_control").write_text("reno")
    (settings / "tcp_slow_start_after_idle").write_text("0")
    buffer = 2 * _window_bytes(rate)  # they hold the kernel's own headers too, about as much again
    for direction in ("tcp_rmem", "tcp_wmem"):
        (settings / direction).write_text(f"4096 {buffer} {buffer}")


def _keep_order(namespace: str, device: str, cores: frozenset[int] | None) -> None:
    """One core takes what arrives at a device. Frames that two cores carry overtake each other: TCP sees a loss."""
    words, bit = divmod(min(cores or {0}), 32)
    mask = ",".join([f"{1 << bit:x}", *["00000000"] * words])
    path = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    # By `ip netns exec`, since a namespace's own devices are seen only in a /sys mounted inside it.
    _command("ip", "netns", "exec", namespace, "sh", "-c", f"echo {mask} > {path}")


def _inside(namespace: str, work: Callable[[], T]) -> T:
    """Do something inside a namespace, on a thread that ends with it: ours stays where it is."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            enter_namespace(namespace)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def _without_stderr() -> Iterator[None]:
    """torch warns from C++ that an emulated host has no name; there is no name server to ask, and no need of one."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _delete(name: str) -> bool:
    return subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False).returncode == 0


def _batch(tool: str, namespace: str | None, lines: Sequence[str]) -> None:
    inside = ["-n", namespace] if namespace else []
    _command(tool, *inside, "-batch", "-", standard_input="\n".join(lines) + "\n")


def _command(*words: str, standard_input: str | None = None) -> str:
    done = subprocess.run(words, input=standard_input, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabUnavailable(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
