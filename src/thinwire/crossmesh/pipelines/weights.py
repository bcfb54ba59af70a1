"""Gradients of weights that several ranks have: added up over a stage's ranks, and over stages that tie them.

Ranks of a stage that share a batch have each a part of its gradients; each sum is made once and handed to all, so that
they stay equal bit for bit. A weight that no rank has a gradient of keeps None.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from thinwire.crossmesh.layout import PARTIAL, Layout
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.pipelines.crossing import moved
from thinwire.crossmesh.pipelines.edges import REPLICATED, StageRanks
from thinwire.links import Door


class Weights:
    """A module's, around a step: `begin`, the step's backwards, `sum`."""

    def __init__(
        self,
        module: nn.Module,
        stages: Sequence[StageRanks],
        stage: int,
        tied: Sequence[Mapping[int, str]],
        network: Network,
        door: Door,
    ) -> None:
        self._weights = [each for each in module.parameters() if each.requires_grad]
        self._stages, self._stage, self._network, self._door = stages, stage, network, door
        named = dict(module.named_parameters(remove_duplicate=False))
        for tie in tied:
            if stage in tie and tie[stage] not in named:
                raise ValueError(f"tied weight {tie[stage]!r}: stage {stage} has none of that name")
        self._tied = [(number, tie, named[tie[stage]]) for number, tie in enumerate(tied) if stage in tie]
        self._before: list[Tensor | None] | None = None

    def begin(self) -> None:
        """Put gradients of earlier steps aside, where they must not be added up again."""
        self._before = None
        if self._stages[self._stage].shares or self._tied:
            self._before = [each.grad for each in self._weights]
            for each in self._weights:
                each.grad = None

    def sum(self, loss: Tensor) -> Tensor:
        """Gradients in place; the loss over all of the stage's ranks."""
        if self._stages[self._stage].shares:
            loss = self._over_ranks(loss)
        for number, tie, weight in self._tied:
            self._over_stages(number, tie, weight)
        if self._before is not None:
            for each, before in zip(self._weights, self._before, strict=True):
                if before is not None:
                    each.grad = before if each.grad is None else before + each.grad
            self._before = None
        return loss

    def _over_ranks(self, loss: Tensor) -> Tensor:
        has = [each.grad is not None for each in self._weights]
        facts = torch.tensor([float(loss), *map(float, has)], dtype=torch.float64)
        facts = self._added(facts, "facts")
        by_dtype: defaultdict[torch.dtype, list[nn.Parameter]] = defaultdict(list)
        for weight, anywhere in zip(self._weights, facts[1:].tolist(), strict=True):
            if anywhere:
                by_dtype[weight.dtype].append(weight)
        for dtype, weights in by_dtype.items():
            parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]
            total = self._added(torch.cat([part.reshape(-1) for part in parts]), str(dtype))
            for weight, part in zip(weights, total.split([each.numel() for each in weights]), strict=True):
                weight.grad = part.view_as(weight)
        return facts[0].to(loss.dtype)

    def _added(self, x: Tensor, what: str) -> Tensor:
        ranks = self._stages[self._stage].ranks
        parts, whole = (Layout((len(ranks),), ranks, (word,), tuple(x.shape)) for word in (PARTIAL, REPLICATED))
        name = f"pipeline stage {self._stage} {what}"
        total = moved(parts, whole, x.dtype, x, network=self._network, door=self._door, name=name).wait()
        assert isinstance(total, Tensor)
        return total

    def _over_stages(self, number: int, tie: Mapping[int, str], weight: nn.Parameter) -> None:
        """Each stage's to each other, added in the stages' order, the same everywhere."""
        own = torch.zeros_like(weight) if weight.grad is None else weight.grad.contiguous()
        shape, ends = tuple(weight.shape), sorted(tie)
        handles = {}
        for source in ends:
            for target in ends:
                if source != target and self._stage in (source, target):
                    # Every rank of a stage has all of it by now.
                    ranks = self._stages[source].ranks, self._stages[target].ranks
                    there, here = (StageRanks(each, REPLICATED).layout(shape) for each in ranks)
                    x = own if source == self._stage else None
                    name = f"pipeline tied {number} {source}>{target}"
                    handles[source, target] = moved(
                        there,
                        here,
                        weight.dtype,
                        x,
                        network=self._network,
                        door=self._door,
                        name=name,
                        device=weight.device,
                    )
        parts = {self._stage: own}
        for (source, _), handle in handles.items():
            tile = handle.wait()
            if tile is not None:
                parts[source] = tile
        weight.grad = torch.stack([parts[end] for end in ends]).sum(dim=0)
