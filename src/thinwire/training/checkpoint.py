"""Checkpoints: for each rank a file of tensors and, written after it, a JSON beside it with its checksum.

Each rank keeps its own, so that machines need share no disk. A kill between two files leaves what has no JSON, and a
kill between two ranks a point that not all have: neither counts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from thinwire import artifacts

FORMAT = "thinwire checkpoint"
VERSION = 2
# The last one may be damaged, and the one before it may miss a rank's.
KEPT = 3


class CheckpointError(ValueError):
    """A checkpoint that can't be used: which, why, and what else there is."""


class Point(NamedTuple):
    """Where in a run: after so many epochs, and so many steps of the next one."""

    epochs: int
    steps: int = 0

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Of `3`, or `3:40` within an epoch."""
        if not (match := re.fullmatch(r"([0-9]+)(?::([0-9]+))?", text)):
            raise ValueError(f"{text} is no point of a run; give epochs, as in 3, or epochs and steps, as in 3:40")
        return cls(int(match[1]), int(match[2] or 0))

    @property
    def typed(self) -> str:
        return f"{self.epochs}:{self.steps}" if self.steps else str(self.epochs)

    def __str__(self) -> str:
        return f"epoch {self.epochs}" + (f" and {self.steps} steps" if self.steps else "")


class Offer(NamedTuple):
    """A point that a run with so many ranks can go on from."""

    point: Point
    world_size: int


@dataclass(frozen=True)
class RankFiles:
    """Whose checkpoints: a rank's of a run with so many."""

    folder: Path
    rank: int
    world_size: int

    def tensors(self, point: Point) -> Path:
        within = f".step-{point.steps:06d}" if point.steps else ""
        return self.folder / f"epoch-{point.epochs:06d}{within}.rank-{self.rank}-of-{self.world_size}.safetensors"

    def points(self) -> list[Point]:
        """After which there is one, in order."""
        name = re.compile(rf"epoch-([0-9]+)(?:\.step-([0-9]+))?\.rank-{self.rank}-of-{self.world_size}\.json")
        found = (name.fullmatch(path.name) for path in self.folder.glob("epoch-*.json"))
        return sorted(Point(int(match[1]), int(match[2] or 0)) for match in found if match)

    def sweep(self) -> None:
        """Remove what a kill left half written."""
        for left in self.folder.glob(f".epoch-*.rank-{self.rank}-of-{self.world_size}.*"):
            left.unlink(missing_ok=True)


@dataclass(frozen=True)
class Checkpoint:
    """A rank's state at a point of the run."""

    point: Point
    facts: dict[str, Any]  # what JSON holds
    tensors: dict[str, Tensor]


def write(files: RankFiles, state: Checkpoint) -> None:
    files.folder.mkdir(parents=True, exist_ok=True)
    path = files.tensors(state.point)
    with artifacts.new_file(path) as file:
        file.write(save({name: tensor.contiguous() for name, tensor in state.tensors.items()}))
    seal = {"format": FORMAT, "version": VERSION, "done": state.point.epochs, "steps": state.point.steps}
    seal |= {"sha256": artifacts.digest(path)}
    artifacts.write_sealed(path.with_suffix(".json"), {**seal, "facts": state.facts})
    for point in superseded(files.points()):
        old = files.tensors(point)
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def superseded(points: Sequence[Point]) -> list[Point]:
    """All but the last few, and the last at an epoch's end: another number of ranks can go on from there only."""
    ends = [point for point in points if not point.steps]
    return [point for point in points[:-KEPT] if point not in ends[-1:]]


def read(files: RankFiles, point: Point) -> Checkpoint:
    try:
        return _read(files, point)
    except CheckpointError as error:
        raise CheckpointError(f"{error}. {_offer(files, point)}") from error


def runs(folder: Path) -> list[int]:
    """Numbers of ranks that rank 0's checkpoints here are of."""
    found = (re.fullmatch(r"epoch-.*\.rank-0-of-([0-9]+)\.json", path.name) for path in folder.glob("epoch-*.json"))
    return sorted({int(match[1]) for match in found if match})


def common(everybodys: Sequence[Sequence[Offer]]) -> list[Offer]:
    """What all ranks have."""
    return sorted(set.intersection(*(set(own) for own in everybodys)))


def choose(offers: Sequence[Offer], wanted: Point | None) -> Offer | None:
    """The latest or wanted one, the first of equals; None where there is none."""
    fitting = [offer for offer in offers if wanted in (None, offer.point)]
    if fitting:
        return max(fitting, key=lambda offer: offer.point)
    if wanted is None:
        return None
    there = sorted({offer.point for offer in offers})
    known = f"there are those after {', '.join(map(str, there))}" if there else "there is none"
    raise CheckpointError(f"no checkpoint after {wanted} that all ranks have; {known}")


def _read(files: RankFiles, point: Point) -> Checkpoint:
    path = files.tensors(point)
    try:
        content = artifacts.read_sealed(path.with_suffix(".json"), FORMAT, VERSION)
        if artifacts.digest(path) != content["sha256"]:
            raise ValueError(f"{path}: does not match its checksum; it was changed or damaged")
        return Checkpoint(Point(content["done"], content.get("steps", 0)), content["facts"], load_file(path))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(str(error)) from error


def _offer(files: RankFiles, point: Point) -> str:
    for earlier in reversed([each for each in files.points() if each < point]):
        try:
            _read(files, earlier)
        except CheckpointError:
            continue
        return f"The one before it is whole: --resume-epoch {earlier.typed} goes on from there"
    return "There is no whole one before it: start again in another folder"
