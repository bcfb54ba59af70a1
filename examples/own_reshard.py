"""A DTensor from a mesh of two ranks to one of 2x2 and back through autograd; then a model's weights, in differences.

python examples/own_reshard.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from thinwire import crossmesh, launch


def work() -> list[str]:
    """What each of four ranks runs; with torchrun, your own script."""
    said = []
    left, square = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [[0, 1], [2, 3]])
    whole = torch.arange(35.0).view(7, 5)

    # Ranks 2 and 3 are outside the source: their x has no values.
    x = distribute_tensor(whole, left, [Shard(0)])
    x.requires_grad_()
    out = crossmesh.reshard(x, square, [Shard(1), Replicate()], name="activation")
    said.append(f"out is {tuple(out.to_local().shape)} here, {tuple(out.shape)} in all")
    out.to_local().square().sum().backward()
    if x.grad is not None and dist.get_rank() < 2:
        said.append(f"x.grad is right: {torch.equal(x.grad.to_local(), 2 * x.to_local().detach())}")

    # How it went: before anything is sent, and for any network.
    network = crossmesh.Network.even([0, 0, 1, 1], bytes_per_s=125e6)
    plan = crossmesh.plan(left, [Shard(0)], square, [Replicate(), Replicate()], (4096, 4096), torch.float32, network)
    said.append(
        f"64 MiB to 2 hosts at 1 Gbit/s: {plan.strategy}, {plan.predicted_s:.2f} s, at least {plan.bound_s:.2f} s, "
        f"{plan.host_bytes / 2**20:.0f} MiB between hosts"
    )

    # Weights to a server, again and again: differences in 8 bits.
    server = DeviceMesh("cpu", [3])
    sync = crossmesh.StateSync(server, [Replicate()], codec="difference:uniform:8")
    weights = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    for step in range(3):
        now = weights + 0.01 * step
        served = sync.send({"weights": distribute_tensor(now, left, [Shard(0)])})
        assert sync.plan is not None
        if dist.get_rank() == 3:
            error = float((served["weights"].to_local() - now).abs().max())
            said.append(f"step {step}: {sync.plan.sent_bytes} bytes, error {error:.1e}")
    crossmesh.close()
    return said


if __name__ == "__main__":
    for rank, lines in enumerate(launch.run(work, workers=4)):
        for line in lines:
            print(f"rank {rank}: {line}")
