"""Losses and scores as sums over this shard's nodes; over all ranks they add up to the whole graph's."""

from torch import Tensor
from torch.nn import functional


def loss_sum(out: Tensor, y: Tensor) -> Tensor:
    """Cross entropy; for nodes with several labels, binary cross entropy, as a mean over labels."""
    if y.ndim == 2:
        return functional.binary_cross_entropy_with_logits(out, y, reduction="sum") / y.shape[1]
    return functional.cross_entropy(out, y, reduction="sum")


def hits_and_tries(out: Tensor, y: Tensor) -> list[float]:
    """Two sums whose ratio is the score: accuracy, or micro-F1 for nodes with several labels."""
    if y.ndim == 1:
        return [float((out.argmax(1) == y).sum()), float(len(y))]
    predicted, right = out > 0, y > 0
    return [2 * float((predicted & right).sum()), float(predicted.sum() + right.sum())]


def share(nodes: float, hits: float, tries: float) -> float | None:
    """The score; None if there were no nodes, as that is neither good nor bad."""
    return hits / max(1.0, tries) if nodes else None


def labels(out: Tensor, *, several: bool) -> Tensor:
    """Class numbers [N]; for nodes with several labels, which of them are set [N, C]."""
    return (out > 0).byte() if several else out.argmax(1).int()
