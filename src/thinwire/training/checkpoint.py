"""Checkpoints: for each rank a file of tensors and, written after it, a JSON beside it with its checksum.

Each rank keeps its own, so that machines need share no disk. A kill between two files leaves what has no JSON, and a
kill between two ranks an epoch that not all have: neither counts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Place:
    """Whose checkpoints: a rank's of a run with so many."""

    folder: Path
    rank: int
    world_size: int

    def tensors(self, done: int) -> Path:
        return self.folder / f"epoch-{done:06d}.rank-{self.rank}-of-{self.world_size}.safetensors"

    def epochs(self) -> list[int]:
        """After how many epochs there is one, in order."""
        name = re.compile(rf"epoch-([0-9]+)\.rank-{self.rank}-of-{self.world_size}\.json")
        found = (name.fullmatch(path.name) for path in self.folder.glob("epoch-*.json"))
        return sorted(int(match[1]) for match in found if match)

    def sweep(self) -> None:
        """Remove what a kill left half written."""
        for left in self.folder.glob(f".epoch-*.rank-{self.rank}-of-{self.world_size}.*"):
            left.unlink(missing_ok=True)


@dataclass(frozen=True)
class Checkpoint:
    """A rank's state after so many epochs."""

    done: int
    facts: dict[str, Any]  # what JSON holds
    tensors: dict[str, Tensor]


def write(place: Place, state: Checkpoint) -> None:
    place.folder.mkdir(parents=True, exist_ok=True)
    path = place.tensors(state.done)
    with artifacts.new_file(path) as file:
        file.write(save({name: tensor.contiguous() for name, tensor in state.tensors.items()}))
    seal = {"format": FORMAT, "version": VERSION, "done": state.done, "sha256": artifacts.digest(path)}
    artifacts.write_sealed(path.with_suffix(".json"), {**seal, "facts": state.facts})
    for done in place.epochs()[:-KEPT]:
        old = place.tensors(done)
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def read(place: Place, done: int) -> Checkpoint:
    try:
        return _read(place, done)
    except CheckpointError as error:
        raise CheckpointError(f"{error}. {_offer(place, done)}") from error


def runs(folder: Path) -> list[int]:
    """Numbers of ranks that rank 0's checkpoints here are of."""
    found = (re.fullmatch(r"epoch-[0-9]+\.rank-0-of-([0-9]+)\.json", path.name) for path in folder.glob("epoch-*.json"))
    return sorted({int(match[1]) for match in found if match})


def common(everybodys: Sequence[Sequence[int]]) -> list[int]:
    """Epochs that all ranks have."""
    return sorted(set.intersection(*(set(own) for own in everybodys)))


def choose(offers: Sequence[tuple[int, int]], wanted: int | None) -> tuple[int, int] | None:
    """Of (epochs done, number of ranks) the latest or wanted one, the first of equals; None where there is none."""
    fitting = [offer for offer in offers if wanted in (None, offer[0])]
    if fitting:
        return max(fitting, key=lambda offer: offer[0])
    if wanted is None:
        return None
    there = sorted({done for done, _ in offers})
    known = f"there are those after epochs {', '.join(map(str, there))}" if there else "there is none"
    raise CheckpointError(f"no checkpoint after epoch {wanted} that all ranks have; {known}")


def _read(place: Place, done: int) -> Checkpoint:
    path = place.tensors(done)
    try:
        content = artifacts.read_sealed(path.with_suffix(".json"), FORMAT, VERSION)
        if artifacts.digest(path) != content["sha256"]:
            raise ValueError(f"{path}: does not match its checksum; it was changed or damaged")
        return Checkpoint(content["done"], content["facts"], load_file(path))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(str(error)) from error


def _offer(place: Place, done: int) -> str:
    for earlier in reversed([each for each in place.epochs() if each < done]):
        try:
            _read(place, earlier)
        except CheckpointError:
            continue
        return f"The one before it is whole: --resume-epoch {earlier} goes on from there"
    return "There is no whole one before it: start again in another folder"
