"""BatchNorm over the nodes of the whole graph: statistics are summed over ranks, forward and backward."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from thinwire.links import Door


class WholeBatchNorm:
    """The forward of a BatchNorm on a shard. With running statistics in evaluation mode it is the module's own."""

    def __init__(self, norm: _BatchNorm, door: Door, name: str) -> None:
        self._norm = norm
        self._door = door
        self._channel = f"{name}.statistics"
        self._plain_forward = norm.forward

    def __call__(self, x_ND: Tensor) -> Tensor:
        norm = self._norm
        if not norm.training and norm.running_mean is not None:
            return self._plain_forward(x_ND)
        x_hat, mean, variance, count = _Normalise.apply(x_ND, self._door, self._channel, norm.eps)  # type: ignore[no-untyped-call]
        if norm.training and norm.running_mean is not None and norm.running_var is not None:
            with torch.no_grad():
                assert norm.num_batches_tracked is not None
                norm.num_batches_tracked.add_(1)
                share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
                norm.running_mean.lerp_(mean, share)
                norm.running_var.lerp_(variance * (count / (count - 1)), share)
        if norm.affine:
            return x_hat * norm.weight + norm.bias
        out: Tensor = x_hat
        return out


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x_ND: Tensor, door: Door, channel: str, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Squares are taken around this rank's mean and combined in float64: a large offset would cost digits otherwise.
        n = len(x_ND)
        mean_here = x_ND.mean(0) if n else x_ND.new_zeros(x_ND.shape[1])
        squares = (x_ND - mean_here).square().sum(0, dtype=torch.float64) + n * mean_here.double().square()
        sums_here = torch.cat((mean_here.new_full((1,), n).double(), n * mean_here.double(), squares))
        door.all_reduce(sums_here, channel=channel).wait()
        count, (sums, squares) = sums_here[:1], sums_here[1:].split(x_ND.shape[1])
        mean = sums / count
        variance = squares / count - mean.square()
        scale = (variance + eps).rsqrt().to(x_ND.dtype)
        x_hat = (x_ND - mean.to(x_ND.dtype)) * scale
        ctx.save_for_backward(x_hat, scale, count)
        ctx.door, ctx.channel = door, channel  # type: ignore[attr-defined]
        return x_hat, mean.to(x_ND.dtype), variance.to(x_ND.dtype), count.to(x_ND.dtype)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x_hat, scale, count = ctx.saved_tensors  # type: ignore[attr-defined]
        grad = grads[0]
        sums_here = torch.cat((grad.sum(0, dtype=torch.float64), (grad * x_hat).sum(0, dtype=torch.float64)))
        ctx.door.all_reduce(sums_here, channel=ctx.channel).wait()  # type: ignore[attr-defined]
        along, across = (sums_here / count).to(grad.dtype).split(grad.shape[1])
        return scale * (grad - along - x_hat * across), None, None, None
