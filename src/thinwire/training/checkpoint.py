"""Checkpoints: each rank writes a file of tensors and then, beside it, a JSON file with its checksum.

Each rank keeps its own files, so machines need not share a disk. If a run is killed between the two files, the tensors
have no JSON; if it is killed between two ranks, some ranks lack the checkpoint. In both cases it does not count.
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
# Checkpoints kept: the last may be damaged, and the one before it may lack some rank's files.
KEPT = 3


class CheckpointError(ValueError):
    """A checkpoint that can't be used. The message says which one, why, and which other one could be used."""


class Point(NamedTuple):
    """A place in a run: the epochs that are done, and the steps done in the next one."""

    epochs: int
    steps: int = 0

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Read `3` (after epoch 3) or `3:40` (and 40 steps of the next epoch)."""
        if not (match := re.fullmatch(r"([0-9]+)(?::([0-9]+))?", text)):
            raise ValueError(f"{text} is no point of a run; give epochs, as in 3, or epochs and steps, as in 3:40")
        return cls(int(match[1]), int(match[2] or 0))

    @property
    def typed(self) -> str:
        return f"{self.epochs}:{self.steps}" if self.steps else str(self.epochs)

    def __str__(self) -> str:
        return f"epoch {self.epochs}" + (f" and {self.steps} steps" if self.steps else "")


class Offer(NamedTuple):
    """A checkpoint to resume from: its point, and the number of ranks of the run that wrote it."""

    point: Point
    world_size: int


@dataclass(frozen=True)
class RankFiles:
    """The checkpoint files of one rank, in a run with `world_size` ranks."""

    folder: Path
    rank: int
    world_size: int

    def tensors(self, point: Point) -> Path:
        within = f".step-{point.steps:06d}" if point.steps else ""
        return self.folder / f"epoch-{point.epochs:06d}{within}.rank-{self.rank}-of-{self.world_size}.safetensors"

    def points(self) -> list[Point]:
        """The points with a checkpoint, in order."""
        name = re.compile(rf"epoch-([0-9]+)(?:\.step-([0-9]+))?\.rank-{self.rank}-of-{self.world_size}\.json")
        matches = (name.fullmatch(path.name) for path in self.folder.glob("epoch-*.json"))
        return sorted(Point(int(match[1]), int(match[2] or 0)) for match in matches if match)

    def sweep(self) -> None:
        """Remove the half-written files of a run that was killed."""
        for leftover in self.folder.glob(f".epoch-*.rank-{self.rank}-of-{self.world_size}.*"):
            leftover.unlink(missing_ok=True)


@dataclass(frozen=True)
class Checkpoint:
    """A rank's state at a point of the run."""

    point: Point
    facts: dict[str, Any]  # kept in the JSON file
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
    """The points to delete: all but the last few, and the last one at an epoch's end.

    That one is kept because a run with another number of ranks can only resume at an epoch's end.
    """
    ends = [point for point in points if not point.steps]
    return [point for point in points[:-KEPT] if point not in ends[-1:]]


def read(files: RankFiles, point: Point) -> Checkpoint:
    try:
        return _read(files, point)
    except CheckpointError as error:
        raise CheckpointError(f"{error}. {_offer(files, point)}") from error


def runs(folder: Path) -> list[int]:
    """The world sizes of the runs whose rank 0 has checkpoints in this folder."""
    matches = (re.fullmatch(r"epoch-.*\.rank-0-of-([0-9]+)\.json", path.name) for path in folder.glob("epoch-*.json"))
    return sorted({int(match[1]) for match in matches if match})


def common(offers_by_rank: Sequence[Sequence[Offer]]) -> list[Offer]:
    """The offers that all ranks have."""
    return sorted(set.intersection(*(set(offers) for offers in offers_by_rank)))


def choose(offers: Sequence[Offer], wanted: Point | None) -> Offer | None:
    """The latest offer, or the latest at the wanted point; the first of equals. None if there is no offer at all."""
    fitting = [offer for offer in offers if wanted in (None, offer.point)]
    if fitting:
        return max(fitting, key=lambda offer: offer.point)
    if wanted is None:
        return None
    points = sorted({offer.point for offer in offers})
    known = f"there are those after {', '.join(map(str, points))}" if points else "there is none"
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
    for earlier in reversed([other for other in files.points() if other < point]):
        try:
            _read(files, earlier)
        except CheckpointError:
            continue
        return f"The one before it is whole: --resume-epoch {earlier.typed} goes on from there"
    return "There is no whole one before it: start again in another folder"
