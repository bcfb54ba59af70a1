"""How wrong, and how often right: sums over this shard's nodes that add up to the whole graph's."""

from torch import Tensor
from torch.nn import functional


def loss_sum(out: Tensor, y: Tensor) -> Tensor:
    """Cross entropy; where nodes have several labels, the mean over labels of the binary one."""
    if y.ndim == 2:
        return functional.binary_cross_entropy_with_logits(out, y, reduction="sum") / y.shape[1]
    return functional.cross_entropy(out, y, reduction="sum")


def hits_and_tries(out: Tensor, y: Tensor) -> list[float]:
    """Whose ratio is the score: accuracy, or micro-F1 where nodes have several labels."""
    if y.ndim == 1:
        return [float((out.argmax(1) == y).sum()), float(len(y))]
    said, right = out > 0, y > 0
    return [2 * float((said & right).sum()), float(said.sum() + right.sum())]


def share(nodes: float, hits: float, tries: float) -> float | None:
    """The score; None where there were no nodes, which is neither good nor bad."""
    return hits / max(1.0, tries) if nodes else None


def labels(out: Tensor, *, several: bool) -> Tensor:
    """Class numbers [N]; or, where nodes have several labels, which are set [N, C]."""
    return (out > 0).byte() if several else out.argmax(1).int()
