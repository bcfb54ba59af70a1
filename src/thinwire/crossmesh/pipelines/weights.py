"""Gradients of weights that several ranks have: added up over a stage's ranks, and over stages that tie them.

If a stage's ranks split a batch, each has a part of the gradients. Each sum is computed once and sent to all, so that
ranks stay equal bit for bit. If no rank has a gradient of a weight, its gradient stays None.
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
    """The weights of a rank's module. Around each step, call `begin`, run the backwards, call `sum`."""

    def __init__(
        self,
        module: nn.Module,
        stages: Sequence[StageRanks],
        stage: int,
        tied: Sequence[Mapping[int, str]],
        network: Network,
        door: Door,
    ) -> None:
        self._weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._stages, self._stage, self._network, self._door = stages, stage, network, door
        named = dict(module.named_parameters(remove_duplicate=False))
        for tie in tied:
            if stage in tie and tie[stage] not in named:
                raise ValueError(f"tied weight {tie[stage]!r}: stage {stage} has none of that name")
        self._tied = [(number, tie, named[tie[stage]]) for number, tie in enumerate(tied) if stage in tie]
        self._before: list[Tensor | None] | None = None

    def begin(self) -> None:
        """Set gradients of earlier steps aside if this step's are summed, so that they are not summed again."""
        self._before = None
        if self._stages[self._stage].shares or self._tied:
            self._before = [parameter.grad for parameter in self._weights]
            for parameter in self._weights:
                parameter.grad = None

    def sum(self, loss: Tensor) -> Tensor:
        """Sum the gradients in place. Returns the loss over all ranks of the stage."""
        if self._stages[self._stage].shares:
            loss = self._over_ranks(loss)
        for number, tie, weight in self._tied:
            self._over_stages(number, tie, weight)
        if self._before is not None:
            for parameter, before in zip(self._weights, self._before, strict=True):
                if before is not None:
                    parameter.grad = before if parameter.grad is None else before + parameter.grad
            self._before = None
        return loss

    def _over_ranks(self, loss: Tensor) -> Tensor:
        has = [parameter.grad is not None for parameter in self._weights]
        facts = torch.tensor([float(loss), *map(float, has)], dtype=torch.float64)
        facts = self._added(facts, "facts")
        by_dtype: defaultdict[torch.dtype, list[nn.Parameter]] = defaultdict(list)
        for weight, anywhere in zip(self._weights, facts[1:].tolist(), strict=True):
            if anywhere:
                by_dtype[weight.dtype].append(weight)
        for dtype, weights in by_dtype.items():
            parts = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in weights]
            total = self._added(torch.cat([part.reshape(-1) for part in parts]), str(dtype))
            for weight, part in zip(weights, total.split([parameter.numel() for parameter in weights]), strict=True):
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
        """Send each stage's gradient to the others; added in the stages' order, so that all ranks have equal sums."""
        own_gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad.contiguous()
        shape, ends = tuple(weight.shape), sorted(tie)
        handles = {}
        for source in ends:
            for target in ends:
                if source != target and self._stage in (source, target):
                    # By now every rank of a stage has the stage's full gradient.
                    ranks = self._stages[source].ranks, self._stages[target].ranks
                    there, here = (StageRanks(stage_ranks, REPLICATED).layout(shape) for stage_ranks in ranks)
                    x = own_gradient if source == self._stage else None
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
        parts = {self._stage: own_gradient}
        for (source, _), handle in handles.items():
            tile = handle.wait()
            if tile is not None:
                parts[source] = tile
        weight.grad = torch.stack([parts[end] for end in ends]).sum(dim=0)
