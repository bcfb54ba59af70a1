"""What a run of minibatch training obeys. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

METHOD = "salient"
POLICIES = ("vip", "degree", "halo", "paths", "simulation", "oracle", "none")
# How rows of features travel; "auto" is as they are stored.
ROWS = ("auto", "float32", "float16", "uniform:8", "uniform:4", "uniform:2", "uniform:1")
# Of one hop; the sampler counts picks in 20 bits.
MOST_FANOUT = (1 << 20) - 1


@dataclass(frozen=True)
class Plan:
    """SALIENT++: neighbours sampled from the whole graph, features in parts, a cache, a pipeline."""

    batch: int = 1024  # seeds of a rank in a step, at most
    fanouts: tuple[int, ...] = (15, 10, 5)  # from the seeds outwards; -1 is all
    cache: float = 0.16  # replication factor: of N / K rows, how many more a rank holds
    cache_policy: str = "vip"
    rows: str = "auto"
    depth: int = 4  # batches whose rows are under way while another is trained on; 0 is no pipeline
    threads: int = 1  # that sample ahead
    seed: int = 0
    method: str = METHOD

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", tuple(self.fanouts))
        if self.method != METHOD:
            raise ValueError(f"method is {self.method!r}; give {METHOD}")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}; give 1 or more seeds")
        if not self.fanouts:
            raise ValueError("there are no fan-outs; give one for each layer, like 15,10,5")
        for fanout in self.fanouts:
            if fanout != -1 and not 1 <= fanout <= MOST_FANOUT:
                raise ValueError(f"fan-out {fanout}; give 1 to {MOST_FANOUT}, or -1 for all neighbours")
        if not 0 <= self.cache < math.inf:
            raise ValueError(f"cache is {self.cache}; give 0 (none) or more: 1 holds as many rows again as a part has")
        _expect("cache_policy", self.cache_policy, POLICIES)
        _expect("rows", self.rows, ROWS)
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; give 0 (no pipeline) or more batches")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; give 1 or more")

    @property
    def may_be_stale(self) -> bool:
        """Whether gradients may be an epoch's late; batches' never are."""
        return False

    @staticmethod
    def fanouts_for(layers: int, text: str = "") -> tuple[int, ...]:
        """One for each layer: from "15,10,5", or where nothing is said the default, its last one again and again."""
        usual = (*Plan.fanouts, *[Plan.fanouts[-1]] * layers)
        fanouts = Plan.parse_fanouts(text) if text else usual[:layers]
        if len(fanouts) != layers:
            given = ",".join(map(str, fanouts))
            raise ValueError(f"{layers} layers and fan-outs {given}; give a fan-out for each layer, like 15,10,5")
        return fanouts

    @staticmethod
    def parse_fanouts(text: str) -> tuple[int, ...]:
        """From "15,10,5"."""
        try:
            return tuple(int(word) for word in text.split(","))
        except ValueError:
            raise ValueError(f"{text!r} are no fan-outs; give one for each layer, like 15,10,5") from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _expect(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"{name} is {given!r}; give one of {', '.join(known)}")
