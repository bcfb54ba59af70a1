"""What ranks run in the tests of resharding."""

import os
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from tests.crossmesh.made import drawn_layout, drawn_shape, tiles
from thinwire import crossmesh
from thinwire.crossmesh import roles
from thinwire.crossmesh.broadcast import STRATEGIES
from thinwire.crossmesh.layout import Layout
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.planning import AUTO, Gate, Plan, Route, TensorSpec, plan, plan_all
from thinwire.crossmesh.run import start
from thinwire.links import Door, PeerLost

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.bool, torch.complex64, torch.uint8)


def random_plans(seed: int, count: int) -> int:
    """Every strategy, hosts made up; all ranks draw the same and compare with the cut whole, byte for byte."""
    rng = random.Random(seed)
    moved = 0
    with Door() as door:
        handles = []
        for number in range(count):
            shape = drawn_shape(rng)
            source = drawn_layout(rng, door.world_size, shape, partial=True)
            destination = drawn_layout(rng, door.world_size, shape)
            hosts = [rng.randrange(3) for _ in range(door.world_size)]
            dtype = torch.float32 if source.partial_axes else rng.choice(DTYPES)
            even = Network.even([*hosts])
            spec = TensorSpec("x", source, destination, dtype.itemsize)
            made = plan_all((spec,), even, rng.choice([*STRATEGIES, AUTO]), rng.choice((16, 256, 1 << 20)))
            whole = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(number)).to(dtype)
            local = tiles(source, whole).get(door.rank)
            before = None if local is None else local.clone()
            turned = rng.random() < 0.5
            if local is not None and local.dim() > 1 and turned:
                local = local.transpose(0, 1).contiguous().transpose(0, 1)  # not contiguous
            handle = start(made, local, door, dtype=dtype)
            handles.append((handle, local, before, tiles(destination, whole).get(door.rank)))
            if len(handles) == 3:  # three calls under way at a time
                for handle, local, before, expected in handles:
                    out = handle.wait()
                    assert (out is None) == (expected is None)
                    if out is not None and expected is not None:
                        assert out.dtype == expected.dtype
                        assert torch.equal(out, expected)
                    if local is not None and before is not None:
                        assert torch.equal(local, before), "the source was changed"
                handles = []
            moved += bool(made.routes)
    return moved


def scrambled(made: Plan, rng: random.Random) -> Plan:
    """The same pieces in another order, along other trees, in other chunks, with gates at random."""
    shuffled = list(made.routes)
    rng.shuffle(shuffled)
    routes: list[Route] = []
    for route in shuffled:
        reached, edges = [route.sender], []
        receivers = [dst for _, dst in route.edges]
        rng.shuffle(receivers)
        for rank in receivers:
            edges.append((rng.choice(reached), rank))
            reached.append(rank)
        edges.sort(key=lambda edge: edge[0] != route.sender)  # the sender's first
        gates = []
        for _ in range(rng.randrange(3) if routes else 0):
            earlier = rng.randrange(len(routes))
            signals = rng.choice([rank for edge in routes[earlier].edges for rank in edge])
            gates.append(Gate(earlier, signals, rng.choice(reached)))
        several = {(gate.route, gate.signals, gate.waits): gate for gate in gates}
        chunk = rng.choice((1, 5, 1 << 20))
        routes.append(replace(route, edges=tuple(edges), chunk_bytes=chunk, gates=tuple(several.values())))
    return replace(made, routes=tuple(routes))


def any_plans(seed: int, count: int) -> tuple[int, int]:
    """Plans that no planner would make: routes done, and the most that this rank had in hand at a time."""
    rng = random.Random(seed)
    done = most = now = 0
    lock = threading.Lock()
    plain = roles.Roles.take_part

    def counted(work: Any, number: int, route: Route) -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        try:
            plain(work, number, route)
        finally:
            with lock:
                now -= 1

    roles.Roles.take_part = counted  # type: ignore[method-assign, assignment]
    with Door(limit_s=20) as door:
        for _ in range(count):
            shape = (rng.randint(3, 9), rng.randint(3, 9))
            source = drawn_layout(rng, door.world_size, shape)
            destination = drawn_layout(rng, door.world_size, shape)
            spec = TensorSpec("x", source, destination, 8)
            made = scrambled(plan_all((spec,), Network.even(range(door.world_size)), AUTO, 64), rng)
            whole = torch.arange(shape[0] * shape[1]).view(shape)
            out = start(made, tiles(source, whole).get(door.rank), door, dtype=torch.int64).wait()
            expected = tiles(destination, whole).get(door.rank)
            if out is not None and expected is not None:
                assert torch.equal(out, expected)
            done += len(made.routes)
    return done, most


def dtensors() -> dict[str, bool]:
    """DTensor's own full_tensor is the judge. Four ranks."""
    meshes = {
        "left": DeviceMesh("cpu", [0, 1]),
        "right": DeviceMesh("cpu", [2, 3]),
        "square": DeviceMesh("cpu", [[0, 1], [2, 3]]),
        "line": DeviceMesh("cpu", [1, 2, 3]),
        "one": DeviceMesh("cpu", [3]),
        "reversed": DeviceMesh("cpu", [3, 2, 1, 0]),
    }
    results: dict[str, bool] = {}
    whole = torch.arange(7 * 6, dtype=torch.float32).view(7, 6)
    cases: list[tuple[str, list[Placement], str, list[Placement]]] = [
        ("left", [Shard(0)], "right", [Shard(0)]),  # same placements elsewhere: DTensor would leave it
        ("left", [Shard(1)], "square", [Shard(0), Replicate()]),
        ("square", [Shard(0), Shard(1)], "one", [Replicate()]),
        ("square", [Replicate(), Shard(0)], "line", [Shard(1)]),
        ("one", [Replicate()], "left", [Shard(0)]),
        ("line", [Shard(0)], "line", [Shard(1)]),
        ("square", [Shard(0), Shard(0)], "square", [Shard(0), Shard(0)]),
    ]
    for source, placements, destination, wanted in cases:
        x = distribute_tensor(whole, meshes[source], placements)
        out = crossmesh.reshard(x, meshes[destination], wanted)
        assert out.device_mesh == meshes[destination]
        assert list(out.placements) == wanted
        if meshes[destination].get_coordinate() is not None:
            assert torch.equal(out.full_tensor(), whole), (source, destination)
            expected = distribute_tensor(whole, meshes[destination], wanted, src_data_rank=None)
            assert torch.equal(out.to_local(), expected.to_local())
        else:
            distribute_in_vain(whole, meshes[destination], wanted)
            assert out.to_local().numel() == 0
    even = torch.arange(8 * 4, dtype=torch.float32).view(8, 4)
    x = distribute_tensor(even, meshes["reversed"], [Shard(0)])
    out = crossmesh.reshard(x, meshes["square"], [Shard(0), Replicate()])
    results["reversed source"] = torch.equal(out.full_tensor(), even)
    back = crossmesh.reshard(out, meshes["reversed"], [Shard(0)])
    results["reversed destination"] = torch.equal(back.full_tensor(), even)
    crossmesh.close()
    return results


def distribute_in_vain(whole: torch.Tensor, mesh: DeviceMesh, placements: list[Any]) -> None:
    """No rank outside the mesh has a part in it."""
    assert distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local().numel() == 0


def gradients() -> bool:
    """The gradient of a function of the resharded tensor, beside one process's."""
    left, square = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [[1, 2], [3, 0]])
    whole = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    plain = whole.clone().requires_grad_()
    (plain.sin() * torch.arange(5.0)).sum().backward()
    cases: list[tuple[list[Placement], list[Placement]]] = [
        ([Shard(0)], [Shard(1), Replicate()]),
        ([Replicate()], [Replicate(), Shard(0)]),
    ]
    for placements, wanted in cases:
        x = distribute_tensor(whole, left, placements)
        x.requires_grad_()
        out = crossmesh.reshard(x, square, wanted, name="activation")
        local = out.to_local()
        offset = torch.arange(5.0)
        if wanted[0] == Shard(1):
            tile = Layout((2, 2), (1, 2, 3, 0), ("S1", "R"), (6, 5)).tiles[dist.get_rank()]
            offset = torch.cat([offset[low:high] for low, high in tile[1]])
        (local.sin() * offset).sum().backward()
        assert plain.grad is not None
        if dist.get_rank() < 2:
            assert isinstance(x.grad, DTensor)
            expected = distribute_tensor(plain.grad, left, placements, src_data_rank=None)
            assert torch.equal(x.grad.to_local(), expected.to_local())
        else:
            distribute_in_vain(plain.grad, left, list(placements))
    # Partial sums: reduced on the way, and the whole gradient comes back to each.
    size = 4 if dist.get_rank() < 2 else 0  # no values outside the mesh
    local = torch.full((size,), float(dist.get_rank() + 1), requires_grad=True)
    partial = DTensor.from_local(local, left, [Partial()], run_check=False, shape=torch.Size((4,)), stride=(1,))
    out = crossmesh.reshard(partial, square, [Shard(0), Shard(0)])
    assert torch.equal(out.to_local().detach(), torch.tensor([3.0]))
    (out.to_local() * 2).sum().backward()
    if dist.get_rank() < 2:
        assert local.grad is not None
        assert torch.equal(local.grad, torch.full((4,), 2.0))
    crossmesh.close()
    return True


def reductions() -> bool:
    """Averages, maxima and minima of partial tensors; an average's gradient; what has none is refused."""
    left, right = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])
    size = 6 if dist.get_rank() < 2 else 0
    for how, expected in {"sum": 3.0, "avg": 1.5, "max": 2.0, "min": 1.0}.items():
        local = torch.full((size,), dist.get_rank() + 1.0)
        options: dict[str, Any] = {"run_check": False, "shape": torch.Size((6,)), "stride": (1,)}
        out = crossmesh.reshard(DTensor.from_local(local, left, [Partial(how)], **options), right, [Shard(0)])
        assert out.to_local().tolist() == [expected] * (3 if dist.get_rank() > 1 else 0)
    local = torch.full((size,), dist.get_rank() + 1.0, requires_grad=True)
    out = crossmesh.reshard(DTensor.from_local(local, left, [Partial("avg")], **options), right, [Shard(0)])
    out.to_local().sum().backward()
    assert local.grad is not None
    assert local.grad.tolist() == [0.5] * size
    with pytest.raises(ValueError, match="no gradient here"):
        crossmesh.reshard(DTensor.from_local(local, left, [Partial("max")], **options), right, [Shard(0)])
    # Closed and opened again: nobody takes the old door's goodbyes for the new one's.
    crossmesh.close()
    dist.barrier()
    x = DTensor.from_local(torch.ones(size), left, [Replicate()], **options)
    made = crossmesh.plan(left, [Replicate()], right, [Shard(0)], (6,), torch.float32)
    assert crossmesh.reshard(x, right, [Shard(0)], plan=made).to_local().numel() == (3 if dist.get_rank() > 1 else 0)
    with pytest.raises(ValueError, match="plan again"):
        crossmesh.reshard(x, right, [Replicate()], plan=made)
    crossmesh.close()
    return True


def swapped() -> bool:
    """Two equal reshards, differentiated in different orders on different ranks: gradients don't cross."""
    left, right = DeviceMesh("cpu", [0]), DeviceMesh("cpu", [1])
    whole = torch.zeros(4)
    first, second = (distribute_tensor(whole, left, [Replicate()]) for _ in range(2))
    for x in (first, second):
        x.requires_grad_()
    outs = [crossmesh.reshard(x, right, [Replicate()]) for x in (first, second)]
    losses = [out.to_local().sum() * weight for out, weight in zip(outs, (2.0, 3.0), strict=True)]
    moving = [threading.Thread(target=loss.backward) for loss in (losses if dist.get_rank() else losses[::-1])]
    for thread in moving:
        thread.start()
    for thread in moving:
        thread.join()
    if dist.get_rank() == 0:
        for x, weight in ((first, 2.0), (second, 3.0)):
            assert isinstance(x.grad, DTensor)
            assert x.grad.to_local().tolist() == [weight] * 4
    crossmesh.close()
    return True


def differences(strategy: str) -> float:
    """From one rank to replicas on its own host and on others, by several routes; the largest error after a change."""
    one, others = DeviceMesh("cpu", [0]), DeviceMesh("cpu", [1, 2, 3])
    cost = Network.even([0, 0, 1, 2])
    sync = crossmesh.StateSync(others, [Replicate()], codec="difference:uniform:8", cost=cost, strategy=strategy)
    worst = 0.0
    for time in range(3):
        now = torch.arange(5000.0).sin() * (1 + 0.1 * time)
        out = sync.send({"w": distribute_tensor(now, one, [Replicate()])})["w"].to_local()
        if out.numel():
            worst = max(worst, float((out - now).abs().max()))
    crossmesh.close()
    return worst


def without_a_tensor() -> bool:
    """Ranks outside the source mesh need no x; a rank in neither mesh does not call at all."""
    if dist.get_rank() == 3:
        dist.barrier()
        return True
    source, destination = DeviceMesh("cpu", [0], _init_backend=False), DeviceMesh("cpu", [1, 2], _init_backend=False)
    made = crossmesh.plan(source, [Replicate()], destination, [Shard(0)], (5,), torch.float32)
    x = None
    if dist.get_rank() == 0:
        x = DTensor.from_local(torch.arange(5.0), source, [Replicate()], run_check=False)
    out = crossmesh.reshard(x, destination, [Shard(0)], plan=made, dtype=torch.float32)
    expected = {0: [], 1: [0.0, 1.0, 2.0], 2: [3.0, 4.0]}[dist.get_rank()]
    assert out.to_local().tolist() == expected
    dist.barrier()
    crossmesh.close()
    return True


def killed(folder: str, placement: str) -> None:
    """Rank 2 dies in the middle of something large; the others are told which, and what it carried."""
    with Door(limit_s=10) as door:
        if placement == "P":
            source = Layout((4,), (0, 1, 2, 3), ("P",), (1 << 21,))
            destination = Layout((4,), (0, 1, 2, 3), ("R",), (1 << 21,))
        else:
            source = Layout((2,), (0, 1), ("S0",), (1 << 22,))
            destination = Layout((2,), (2, 3), ("R",), (1 << 22,))
        made = plan(source, destination, itemsize=4, network=Network.even([0, 0, 1, 1]), name="weights")
        local = torch.zeros(1 << 21) if door.rank in source.ranks else None
        start(made, local, door, name="weights", dtype=torch.float32).wait()
        if door.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(3):
                start(made, local, door, name="weights", dtype=torch.float32).wait()
        except PeerLost as error:
            (Path(folder) / str(door.rank)).write_text(str(error))
            raise


class HostBytes(NamedTuple):
    """Bytes between hosts: this rank's by the door's books; all that the plan says, and the least that any could."""

    sent: int
    planned: int
    least: int


def bytes_between_hosts(strategy: str) -> HostBytes:
    hosts = [0, 0, 1, 1]
    with Door() as door:
        source = Layout((2,), (0, 1), ("S0",), (64, 33))
        destination = Layout((2,), (2, 3), ("R",), (64, 33))
        made = plan(source, destination, itemsize=4, network=Network.even(hosts), strategy=strategy)
        door.books.take()
        local = torch.ones(32, 33) if door.rank < 2 else None
        start(made, local, door, dtype=torch.float32).wait()
        sent = 0
        for book in door.books.take().values():
            sent += sum(size for peer, size in book.bytes_to.items() if hosts[peer] != hosts[door.rank])
        return HostBytes(sent, made.host_bytes, made.least_host_bytes)


def state_dicts(codec: str) -> list[float]:
    """A model's weights from 2x2 to 1x2, three times, changing a little: the largest error of each time."""
    trainer, server = DeviceMesh("cpu", [[0, 1], [2, 3]]), DeviceMesh("cpu", [[4, 5]])
    errors = []
    sync = crossmesh.StateSync(
        server, _served, codec=lambda name: "" if name == "steps" else codec, memory_bytes=1 << 20
    )
    for time in range(3):
        whole = _weights(time)
        state = {
            name: distribute_tensor(x, trainer, [Shard(0), Replicate()] if x.dim() < 2 else [Shard(0), Shard(1)])
            for name, x in whole.items()
        }
        sent = sync.send(state)
        assert list(sent) == list(whole)
        worst = 0.0
        for name, x in whole.items():
            expected = distribute_tensor(x, server, _served(name), src_data_rank=None).to_local()
            local = sent[name].to_local()
            assert local.dtype == x.dtype
            assert local.shape == expected.shape
            if name == "steps":
                assert torch.equal(local, expected)
            elif local.numel():
                worst = max(worst, float((local - expected).abs().max()))
        errors.append(worst)
    crossmesh.close()
    return errors


def _served(name: str) -> list[Placement]:
    return [Replicate(), Shard(0)] if name == "wide" else [Replicate(), Replicate()]


def _weights(time: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    made = {"wide": torch.randn(130, 70, generator=generator), "bias": torch.randn(33, generator=generator)}
    for _ in range(time):
        made = {name: x + 0.001 * torch.randn(x.shape, generator=generator) for name, x in made.items()}
    return made | {"steps": torch.tensor([7 + time])}


def profiled() -> Network:
    with Door() as door:
        return crossmesh.profile(door)
