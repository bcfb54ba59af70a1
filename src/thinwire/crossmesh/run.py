"""Run a plan: every rank does its part of each route, in the plan's order, a few at a time, through the door.

No plan deadlocks: all ranks begin routes in the same order, and a route only waits for earlier ones. Buffers are
bounded: a rank handles at most WORKERS pieces at a time; for a piece that it adds up it holds the sum and two parts.
The source is only read.
"""

import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from thinwire.crossmesh.layout import region_shape
from thinwire.crossmesh.planning import Plan
from thinwire.crossmesh.roles import Roles
from thinwire.links import Door

WORKERS = 3


class Handle:
    """Tensors being sent. The source must not change before `wait` returns."""

    def __init__(
        self, door: Door, channel: str, parts: Sequence[Future[None]], finish: Callable[[], dict[int, Tensor]]
    ):
        self._door, self._channel, self._parts, self._finish = door, channel, parts, finish

    def then(self, call: Callable[[], None]) -> None:
        """Call `call` once all parts succeeded, even if nothing waits. `wait` includes it and raises its errors."""
        parts, called = list(self._parts), Future[None]()
        self._parts = [*parts, called]

        def follow() -> None:
            try:
                for part in parts:
                    part.result()
                call()
            except BaseException as error:
                called.set_exception(error)
            else:
                called.set_result(None)

        threading.Thread(target=follow, name="thinwire-receipt", daemon=True).start()

    def wait(self) -> dict[int, Tensor]:
        """This rank's tiles, by the tensor's index in the plan. Tensors of which it has no tile are left out."""
        start = time.perf_counter()
        try:
            for part in self._parts:
                part.result()
        finally:
            self._door.books.waited(self._channel, time.perf_counter() - start)
        return self._finish()


class Single:
    """The handle of a plan for one tensor: `wait` returns the tile by itself."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def then(self, call: Callable[[], None]) -> None:
        self._handle.then(call)

    def wait(self) -> Tensor | None:
        """This rank's tile; None for a rank outside the destination."""
        return self._handle.wait().get(0)


def start(
    plan: Plan,
    local: Tensor | None,
    door: Door,
    *,
    name: str = "",
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    repeat: int | None = None,
) -> Single:
    """Start a plan of one tensor. `local` is this rank's source tile; a rank without one passes the dtype.

    Calls of a plan are numbered in order. If ranks may call in different orders, give `repeat`, the same on all ranks.
    """
    dtypes = [local.dtype if local is not None else dtype]
    held = {} if local is None else {0: local}
    return Single(start_all(plan, held, door, name=name, dtypes=dtypes, device=device, repeat=repeat))


def start_all(
    plan: Plan,
    sources: Mapping[int, Tensor],
    door: Door,
    *,
    dtypes: Sequence[torch.dtype | None],
    name: str = "",
    seed: int = 0,
    device: torch.device | None = None,
    repeat: int | None = None,
    known: MutableMapping[int, Tensor] | None = None,
    held: MutableMapping[int, Tensor] | None = None,
) -> Handle:
    """Start a plan. Every rank of the plan calls this. `sources` are its source tiles, by tensor index in the plan.

    For a tensor in `known`, its difference to `known` is sent, and `known` is updated to what receivers then have.
    `held` is the counterpart on receivers: their tiles so far.
    """
    _check(plan, sources, dtypes, door.rank)
    channels = [f"reshard {name or spec.name}" for spec in plan.tensors]
    # The key and the repeat are the same on all ranks of the plan: which plan it is, and how often it ran before.
    key = f"{name}/{plan.key}"
    repeat = door.repeat(key) if repeat is None else repeat
    roles = Roles(
        plan,
        sources,
        door,
        dtypes=dtypes,
        channels=channels,
        key=key,
        repeat=repeat,
        seed=seed,
        device=device,
        known={} if known is None else known,
        held={} if held is None else held,
    )
    work = roles.all()
    if not work:
        return Handle(door, channels[0], [], roles.finish)
    pool = ThreadPoolExecutor(min(WORKERS, len(work)), thread_name_prefix="thinwire-reshard")
    parts = [pool.submit(role) for role in work]
    pool.shutdown(wait=False)
    return Handle(door, channels[0], parts, roles.finish)


def _check(plan: Plan, sources: Mapping[int, Tensor], dtypes: Sequence[torch.dtype | None], rank: int) -> None:
    for index, spec in enumerate(plan.tensors):
        tile = spec.source.tiles.get(rank)
        if (tile is None) != (index not in sources):
            what = "is not in its source mesh" if tile is None else "holds a tile of it"
            raise ValueError(f"{spec.name}: rank {rank} {what}; give a source tensor just where the plan has one")
        if tile is not None and tuple(sources[index].shape) != region_shape(tile):
            raise ValueError(
                f"{spec.name}: rank {rank} gives a tensor of shape {tuple(sources[index].shape)}, its tile in "
                f"{spec.source} of {spec.source.shape} has {region_shape(tile)}; was the plan made for another tensor?"
            )
        dtype = dtypes[index]
        if dtype is None and rank in spec.destination.ranks:
            raise ValueError(f"{spec.name}: rank {rank} has no source tensor to tell the dtype by; give dtype=")
        if dtype is not None and dtype.itemsize != spec.itemsize:
            raise ValueError(f"{spec.name} is {dtype}, the plan was made for {spec.itemsize} bytes a value; plan again")
