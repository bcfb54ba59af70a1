"""`salient`: sampled batches, features in parts, a cache, a pipeline (SALIENT++, arXiv 2305.03152). Pure."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, get_args

from thinwire.training.method import Method

Policy = Literal["vip", "degree", "halo", "paths", "simulation", "oracle", "none"]
Rows = Literal["auto", "float32", "float16", "uniform:8", "uniform:4", "uniform:2", "uniform:1"]
POLICIES: tuple[str, ...] = get_args(Policy)
# The largest fan-out of a hop: the sampler counts picks in 20 bits.
MOST_FANOUT = (1 << 20) - 1


@dataclass(frozen=True)
class Salient(Method):
    """Sampled batches, features in parts, a cache by probability, a pipeline (SALIENT++)."""

    name: ClassVar[str] = "salient"
    compared: ClassVar[tuple[str, ...]] = ("salient",)
    heeds: ClassVar[tuple[str, ...]] = ("checkpoint_steps",)

    batch: int = 1024
    """Seeds of a rank in a step, at most."""
    fanouts: tuple[int, ...] = (15, 10, 5)
    """Neighbours drawn by each hop, from the seeds outwards, a number for each layer; -1 all. (15,10,5; the first ones
    with fewer layers, the last one again with more)"""
    cache: float = 0.16
    """Replication factor: rows of others that a rank holds, as a share of N / ranks."""
    cache_policy: Policy = "vip"
    """Which rows; oracle samples the whole run beforehand."""
    rows: Rows = "auto"
    """How rows of features travel. (as they are stored)"""
    depth: int = 4
    """Batches that are on their way while another is trained on; 0 is no pipeline."""
    threads: int = 1
    """Threads that sample ahead."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", tuple(self.fanouts))
        super().__post_init__()
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}; give 1 or more seeds")
        if not self.fanouts:
            raise ValueError("there are no fan-outs; give one for each layer, like 15,10,5")
        for fanout in self.fanouts:
            if fanout != -1 and not 1 <= fanout <= MOST_FANOUT:
                raise ValueError(f"fan-out {fanout}; give 1 to {MOST_FANOUT}, or -1 for all neighbours")
        if not 0 <= self.cache < math.inf:
            raise ValueError(f"cache is {self.cache}; give 0 (none) or more: 1 holds as many rows again as a part has")
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; give 0 (no pipeline) or more batches")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; give 1 or more")

    def for_layers(self, layers: int) -> Self:
        """The same method with one fan-out for each layer. The default fan-outs are cut or extended as needed."""
        usual = Salient.fanouts
        if self.fanouts == usual:
            return replace(self, fanouts=(*usual, *[usual[-1]] * layers)[:layers])
        if len(self.fanouts) != layers:
            fanouts = ",".join(map(str, self.fanouts))
            raise ValueError(f"{layers} layers and fan-outs {fanouts}; give a fan-out for each layer, like 15,10,5")
        return self
