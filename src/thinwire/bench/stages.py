"""Transformers cut into pipeline stages: a GPT, and a U-Net-like one with skips from early to late stages."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from thinwire.bench.networks import CONTEXT, Layer
from thinwire.crossmesh.pipelines.edges import Edge, chain

HEADS = 4
GPT, UNET = "gpt", "unet"


class Part(nn.Module):
    """Stage `number` of `num_stages`: embeds if it is the first, ends in logits if it is the last.

    With skips, stage i of the first half narrows its output and sends it to stage n - 1 - i, which widens it again and
    adds it to its own input.
    """

    def __init__(self, number: int, num_stages: int, vocabulary: int, layers: int, width: int, skip_width: int) -> None:
        super().__init__()
        mirror = num_stages - 1 - number
        self.out, self.skip_out = f"h{number + 1}", _skip(number, mirror)
        self.into, self.skip_in = f"h{number}", _skip(mirror, number)
        self.embedding = nn.Embedding(vocabulary, width) if number == 0 else None
        self.places = nn.Embedding(CONTEXT, width) if number == 0 else None
        self.layers = nn.Sequential(*[Layer(width, HEADS) for _ in range(layers)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary)) if mirror == 0 else None
        self.narrow = nn.Linear(width, skip_width) if skip_width and number < mirror else None
        self.widen = nn.Linear(skip_width, width) if skip_width and number > mirror else None

    def forward(self, x: Tensor | None = None, **crossed: Tensor) -> Tensor | Mapping[str, Tensor]:
        h = crossed[self.into] if x is None else x
        if self.embedding is not None and self.places is not None:
            h = self.embedding(h) + self.places(torch.arange(h.shape[1], device=h.device))
        if self.widen is not None:
            h = h + self.widen(crossed[self.skip_in])
        h = self.layers(h)
        if self.head is not None:
            out: Tensor = self.head(h)
            return out
        return {self.out: h} if self.narrow is None else {self.out: h, self.skip_out: self.narrow(h)}


def edges_of(task: str, num_stages: int) -> tuple[Edge, ...]:
    skips = [(number, num_stages - 1 - number) for number in range(num_stages // 2)] if task == UNET else []
    return (*chain(num_stages), *[Edge(_skip(*ends), *ends) for ends in skips])


def _skip(source: int, destination: int) -> str:
    return f"skip{source}{destination}"
