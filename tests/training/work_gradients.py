"""What ranks run: gradients that are known beforehand, summed by every codec."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.gradients import sent
from thinwire.gradients.algorithms import NONE
from thinwire.gradients.sharing import Choice
from thinwire.links import Door
from thinwire.training.choosing import Chooser
from thinwire.training.finite import NotFinite
from thinwire.training.gradients import GradientSum, bytes_of

SIZES = {"first": (60, 50), "small": (30,), "second": (2100,), "aside": (40, 60)}
STEPS = 6


class Given(nn.Module):
    """Its loss has a gradient that anybody can work out: of the weights that this rank reaches, normal numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.zeros(size)) for name, size in SIZES.items()})

    def gradient(self, name: str, step: int, rank: int) -> Tensor:
        seed = 1000 * step + 10 * rank + list(SIZES).index(name)
        return torch.randn(SIZES[name], generator=torch.Generator().manual_seed(seed))

    def loss(self, step: int, rank: int, reached: Sequence[str], scale: float = 1.0) -> Tensor:
        parts = [(self.weights[name] * self.gradient(name, step, rank)).sum() for name in reached]
        return scale * torch.stack(parts).sum()


def reached_by(step: int, rank: int) -> list[str]:
    """All weights in the first step; later some ranks miss some, and in odd steps nobody reaches one."""
    names = list(SIZES)
    if step % 2:
        names.remove("second")
    if step and rank == step % 3:
        names.remove("aside")
    return names


@dataclass
class Found:
    """What came of a codec on one rank."""

    applied: list[dict[str, Tensor | None]]  # by step and name
    remembered: dict[str, Tensor]  # by name, all kinds together
    sent_bytes: list[int]  # in each step
    float32_bytes: list[int]


def _summed(model: Given, door: Door, groups: int, codec: str) -> GradientSum:
    return GradientSum(model.named_parameters(), door, groups=groups, codec=codec, seed=3)


def _step(model: Given, door: Door, step: int) -> dict[str, Tensor | None]:
    model.zero_grad()
    model.loss(step, door.rank, reached_by(step, door.rank)).backward()
    return {name: None if weight.grad is None else weight.grad.clone() for name, weight in model.weights.items()}


def _remembered(sums: GradientSum) -> dict[str, Tensor]:
    total = {name: torch.zeros(size) for name, size in SIZES.items()}
    for key, tensor in sums.state()[1].items():
        name = key.rpartition(".")[2]
        if not key.startswith("window/"):
            total[name] += tensor.view(SIZES[name])
    return total


def by_codecs(codecs: Sequence[str], groups: int) -> dict[str, Found]:
    found = {}
    with Door() as door:
        for codec in codecs:
            model = Given()
            sums = _summed(model, door, groups, codec)
            applied, sizes, plain = [], [], []
            door.books.take()
            for step in range(STEPS):
                applied.append(_step(model, door, step))
                books = door.books.take()
                assert all(name.startswith("gradients") for name in books)
                sizes.append(sum(book.bytes_sent for book in books.values()))
                plain.append(sum(book.float32_bytes for book in books.values()))
            found[codec] = Found(applied, _remembered(sums), sizes, plain)
            assert bytes_of(model.named_parameters(), 3, groups=groups, codec=codec) == sums.bytes_of_sum()
            assert sums.bytes_of_sum() == sent.bytes_of(sums.layout, codec, 3)
    return found


def predicted(codec: str, groups: int) -> int:
    return bytes_of(Given().named_parameters(), 3, groups=groups, codec=codec)


def as_one_all_reduce() -> tuple[list[Tensor], list[Tensor]]:
    """The sums by `none`, and those of one flat all-reduce written out here."""
    ours, plain = [], []
    with Door() as door:
        model = Given()
        _summed(model, door, 1, NONE)
        for step in range(2):
            found = _step(model, door, step)
            names = [name.rpartition(".")[2] for name, _ in model.named_parameters()][::-1]
            reached = reached_by(step, door.rank)
            parts = [
                model.gradient(name, step, door.rank).flatten()
                if name in reached
                else torch.zeros(SIZES[name]).flatten()
                for name in names
            ]
            flags = torch.tensor([float(name in reached) for name in names])
            flat = door.all_reduce(torch.cat([*parts, flags]), channel="test").wait()
            kept = [name for name, flag in zip(names, flat[-len(names) :], strict=True) if flag]
            by_name = dict(zip(names, flat[: -len(names)].split([len(part) for part in parts]), strict=True))
            ours.append(torch.cat([_there(found[name]).flatten() for name in kept]))
            plain.append(torch.cat([by_name[name] for name in kept]))
            assert [name for name in names if found[name] is not None] == kept
    return ours, plain


def _there(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient


def resumed(codec: str) -> list[tuple[Tensor, Tensor]]:
    """The last steps of a run, and of one that goes on from the state in the middle; and their memories."""
    with Door() as door:
        model = Given()
        sums = _summed(model, door, 2, codec)
        whole = [_step(model, door, step) for step in range(STEPS)][3:]
        other = Given()
        first = _summed(other, door, 2, codec)
        for step in range(3):
            _step(other, door, step)
        facts, tensors = first.state()
        again = Given()
        second = _summed(again, door, 2, codec)
        _step(again, door, 9)  # what was remembered of this is forgotten
        second.restore(facts, tensors)
        rest = [_step(again, door, step) for step in range(3, STEPS)]
        pairs = [
            (_there(one[name]), _there(two[name]))
            for one, two in zip(whole, rest, strict=True)
            for name in SIZES
            if one[name] is not None
        ]
        return pairs + list(zip(_remembered(sums).values(), _remembered(second).values(), strict=True))


def broken(codec: str) -> dict[str, Any]:
    """A step in which rank 1's gradient is infinite: what is said, the memory before and after, the next step."""
    with Door() as door:
        model = Given()
        sums = _summed(model, door, 2, codec)
        _step(model, door, 0)
        before, said = _remembered(sums), ""
        try:
            model.loss(1, door.rank, list(SIZES), torch.inf if door.rank == 1 else 1.0).backward()
        except NotFinite as error:
            said = str(error)
        after = _remembered(sums)
        following = _step(model, door, 2)
        return {"said": said, "before": before, "after": after, "next": [_there(each) for each in following.values()]}


class Wrapped(nn.Module):
    """Another name for the same weights."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def changing(codec: str) -> dict[str, Any]:
    """Memory while a weight is frozen, after it has thawed, and once all have other names; two passes before a step."""
    with Door() as door:
        model = Given()
        sums = _summed(model, door, 1, codec)
        _step(model, door, 0)
        before = _remembered(sums)["first"]
        model.weights["first"].requires_grad_(False)
        sums.follow(model.named_parameters())
        names = [name for name in reached_by(2, door.rank) if name != "first"]
        model.loss(2, door.rank, names).backward()
        frozen = _remembered(sums)["first"]
        model.weights["first"].requires_grad_(True)
        sums.follow(model.named_parameters())
        thawed = _remembered(sums)
        model.weights["more"] = nn.Parameter(torch.zeros(3))
        sums.follow(Wrapped(model).named_parameters())
        kinds = {key.partition("/")[2] for key in sums.state()[1]}
        renamed = _remembered_of(sums)
        _step(model, door, 4)
        once = _there(model.weights["first"].grad).clone()
        model.loss(5, door.rank, ["first"]).backward()
        both = _there(model.weights["first"].grad).clone()
        return {
            "before": before,
            "frozen": frozen,
            "thawed": thawed,
            "renamed": renamed,
            "names": kinds,
            "once": once,
            "both": both,
        }


def _remembered_of(sums: GradientSum) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for key, tensor in sums.state()[1].items():
        name = key.rpartition(".")[2]
        total[name] = total.get(name, torch.zeros(())) + tensor
    return total


def fallen_back(steps: int) -> dict[str, Any]:
    """A codec that was chosen to save time, and saves none: what is in force in the end, and what is still owed."""
    with Door() as door, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model = Given()
        chooser = Chooser(door, seed=3, cost=None, skipped=0, noted=1, unsettled=0)
        sums = GradientSum(model.named_parameters(), door, groups=2, codec=sent.AUTO, seed=3, chooser=chooser)
        seconds = {"none": 1.0, "bfloat16": 1.0, "topk:0.05": 0.95}
        chooser.adopt(Choice("topk:0.05", "made up", seconds), sums._named_sizes())
        sums.use("topk:0.05")
        given = applied = torch.zeros(SIZES["first"])
        codecs, owed = [], False
        for step in range(steps):
            model.zero_grad()
            model.loss(step, door.rank, list(SIZES)).backward()
            given = given + sum(model.gradient("first", step, rank) for rank in range(3))
            applied = applied + _there(model.weights["first"].grad)
            codecs.append(sums.codec)
            owed = owed or bool(_remembered(sums)["first"].any())
        return {
            "codecs": codecs,
            "owed": owed,
            "given": given,
            "applied": applied,
            "kept": _remembered(sums),
            "share": chooser.share,
            "records": sums.records,
            "warned": [str(warning.message) for warning in warned if warning.category is RuntimeWarning],
        }
