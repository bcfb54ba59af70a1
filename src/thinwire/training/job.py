"""Everything that a run of `thinwire train` depends on, the same on all ranks."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from thinwire.gradients import sent
from thinwire.gradients.algorithms import NONE
from thinwire.links.exchange import LIMIT_S
from thinwire.training.method import Method

M_co = TypeVar("M_co", bound=Method, covariant=True)
OPTIMIZERS = ("auto", "adam", "qhadam")
DECAYS = ("none", "cosine")


@dataclass(frozen=True)
class Job(Generic[M_co]):
    """What to train, how, and where to keep it."""

    method: M_co
    data: str
    shards: str = ""  # a folder; if empty, the first rank of each machine partitions `data`
    model: str = "sage"
    layers: int = 3
    hidden: int = 128
    dropout: float = 0.0
    norm: str = "layer"
    lr: float = 0.01
    optimizer: str = "auto"  # auto: chosen by whether the method's gradients may be stale
    decay: str = "none"  # of the learning rate
    gradients: str = sent.AUTO  # by which codec weights' gradients are summed; auto: chosen in the run
    epochs: int = 60
    seed: int = 0  # of weights, partition, dropout, batches and rounding
    evaluate_every: int = 5
    profile: str = ""  # a file that `thinwire profile` wrote; if empty, adaqp measures the wires itself
    events: str = ""  # a file to append to; empty: none
    out: str = ""  # a folder for checkpoints and predictions; empty: none
    checkpoint_every: int = 10  # epochs
    checkpoint_steps: int = 1000  # steps between checkpoints within an epoch of batches; 0: none within
    check: bool = True  # whether to check a user's own model before it trains
    resume: bool = False
    resume_epoch: str = ""  # the point to go on from, as `Point.parse` reads it; empty: the last one
    limit_s: float = LIMIT_S  # a rank that keeps others waiting for longer is lost
    launch: dict[str, Any] = field(default_factory=dict)  # how ranks were started, for plan.json
    prediction: dict[str, Any] = field(default_factory=dict)  # why this method was chosen, for plan.json

    def __post_init__(self) -> None:
        for name, known in {"optimizer": OPTIMIZERS, "decay": DECAYS}.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give one of {', '.join(known)}")
        sent.check(self.gradients)

    @property
    def gradients_codec(self) -> str:
        """`auto` is none where the method is exact, so that it stays equal to training in one process."""
        return NONE if self.gradients == sent.AUTO and self.method.gentleness == 0 else self.gradients

    def for_layers(self) -> Self:
        """This job with its method fitted to the number of layers."""
        return replace(self, method=self.method.for_layers(self.layers))

    @property
    def optimizer_name(self) -> str:
        """For `auto`: QHAdam where gradients may be stale (`training/qhadam.py` says why), else Adam."""
        if self.optimizer == "auto":
            return "qhadam" if self.method.may_be_stale else "adam"
        return self.optimizer

    @property
    def checkpoints(self) -> Path:
        return Path(self.out) / "checkpoints"

    def identity(self) -> dict[str, Any]:
        """What must stay the same to resume a run: all but where it is kept, how long it lasts and how it is shown."""
        free = ("data", "shards", "epochs", "evaluate_every", "profile", "events", "out", "checkpoint_every", "resume")
        seen = ("check", "checkpoint_steps", "resume_epoch", "limit_s", "launch", "prediction")
        kept: dict[str, Any] = {"plan": self.method.to_json()}
        kept |= {name: value for name, value in asdict(self).items() if name not in ("method", *free, *seen)}
        kept["optimizer"], kept["gradients"] = self.optimizer_name, self.gradients_codec
        if self.decay != "none":  # its pace depends on the number of epochs
            kept["decay"] = f"{self.decay} over {self.epochs} epochs"
        return dict(json.loads(json.dumps(kept)))  # as it is read back from a checkpoint
