"""Shards on disk: one folder with a manifest and a safetensors file a part. Nothing in it is ever unpickled.

Written beside its place and renamed into it. The manifest carries its own checksum and each file's, so that a damaged,
truncated or swapped file is an error that names it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, structs
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from thinwire import artifacts
from thinwire.checked import Count, strictly
from thinwire.graphs.graph import GraphError
from thinwire.graphs.shard import NUMBERS, TENSORS, Shard

MANIFEST = "manifest.json"
FORMAT = "thinwire shards"
VERSION = 1


class Part(Struct, frozen=True):
    """What the manifest says of a part: its file, and the sizes of what is in it."""

    file: str
    sha256: str
    num_owned: Count
    num_halo: Count
    num_edges: Count
    first_ids: tuple[int, ...]
    # NUMBERS of a Shard
    part: Count
    num_parts: Count
    num_nodes: Count
    num_train: Count
    num_classes: Count
    start: Count
    num_central: Count
    halo_from: tuple[Count, ...]
    send_to: tuple[Count, ...]


class Content(Struct, frozen=True):
    """The manifest, as it is read."""

    num_parts: Count
    num_nodes: Count
    num_edges: Count
    classes: tuple[str, ...]
    settings: dict[str, Any]
    report: dict[str, Any]
    parts: tuple[Part, ...]
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards says of itself."""

    folder: Path
    num_parts: int
    num_nodes: int
    num_edges: int
    classes: tuple[str, ...]
    settings: Mapping[str, Any]  # how it was partitioned, and from what
    report: Mapping[str, Any]  # how good the partition is
    parts: tuple[Part, ...]
    checksum: str  # of the manifest itself, which also says how long partitioning took

    @property
    def content(self) -> str:
        """A checksum of the parts: the same for folders that hold the same."""
        return hashlib.sha256("".join(part.sha256 for part in self.parts).encode()).hexdigest()


def is_shard_folder(path: Path) -> bool:
    """Whether `thinwire partition` or `write_shards` has written this folder."""
    return (path / MANIFEST).is_file()


def check_out(folder: Path) -> None:
    """Raise, before any work, where shards can't be written to this folder."""
    artifacts.check_folder(folder, _is_ours)
    if is_shard_folder(folder):
        try:
            ours = json.loads((folder / MANIFEST).read_bytes()).get("format") == FORMAT
        except (ValueError, AttributeError, RecursionError):
            ours = any(folder.glob("part*.safetensors"))  # ours, damaged
        if not ours:
            raise GraphError(f"{folder} holds somebody else's {MANIFEST}; name another folder, or remove it")


def _is_ours(name: str) -> bool:
    return name == MANIFEST or re.fullmatch(r"part[0-9]+\.safetensors", name) is not None


def write_shards(
    folder: Path,
    shards: Iterable[Shard],
    *,
    classes: tuple[str, ...] = (),
    settings: Mapping[str, Any] | None = None,
    report: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """One shard at a time: no more than one is held. `report` is asked for once all are written."""
    check_out(folder)
    with artifacts.new_folder(folder, _is_ours) as new:
        parts = []
        for shard in shards:
            path = new / f"part{shard.part}.safetensors"
            tensors = {name: getattr(shard, name) for name in TENSORS if getattr(shard, name) is not None}
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
            numbers = {name: getattr(shard, name) for name in NUMBERS}
            sizes = {
                "num_owned": shard.num_owned,
                "num_halo": shard.num_halo,
                "num_edges": len(shard.indices),
                "first_ids": shard.original_ids[:1].tolist(),
            }
            parts.append({"file": path.name, "sha256": artifacts.digest(path), **numbers, **sizes})
        if not parts:
            raise GraphError("no shards to write")
        content = {
            "format": FORMAT,
            "version": VERSION,
            "num_parts": len(parts),
            "num_nodes": parts[0]["num_nodes"],
            "num_edges": sum(part["num_edges"] for part in parts),
            "classes": list(classes),
            "settings": dict(settings or {}),
            "report": dict(report()),
            "parts": parts,
        }
        artifacts.write_sealed(new / MANIFEST, content)


def read_manifest(folder: Path) -> Manifest:
    """What a folder of shards says of itself, its checksum verified."""
    path = folder / MANIFEST
    if not path.is_file():
        raise GraphError(f"{folder}: no {MANIFEST}; give a folder that `thinwire partition` wrote")
    try:
        sealed = artifacts.read_sealed(path, FORMAT, VERSION)
    except ValueError as error:
        raise GraphError(f"{error}; partition again") from error
    try:
        content = strictly(sealed, Content)
        _check_parts(path, content)
    except ValueError as error:
        raise GraphError(f"{path}: {error}; partition again") from error
    return Manifest(folder=folder, **structs.asdict(content))


def _check_parts(path: Path, content: Content) -> None:
    """Its checksum only says that it is as somebody wrote it."""
    for number, part in enumerate(content.parts):
        # A name in the folder; a link of that name is followed, as whoever keeps shards on another disk wants it.
        if part.file != Path(part.file).name or part.file in ("", ".."):
            raise ValueError(f"part {number} is in {part.file!r}, which leads out of {path.parent}")
    if len(content.parts) != content.num_parts:
        raise ValueError(f"num_parts is {content.num_parts}, and parts has {len(content.parts)}")


def read_shard(folder: Path, part: int, *, verify: bool = True, features: bool = True) -> Shard:
    """One part. `verify=False` trusts the file's content, which for large data saves reading it once more.

    `features=False` leaves them in the file: x has no columns.
    """
    manifest = read_manifest(folder)
    if not 0 <= part < manifest.num_parts:
        raise GraphError(f"{folder}: no part {part}; it has {manifest.num_parts}. Partition again for another number")
    entry = manifest.parts[part]
    path = folder / entry.file
    if not path.is_file():
        raise GraphError(f"{path} is missing; copy it again, or partition again")
    if verify and artifacts.digest(path) != entry.sha256:
        raise GraphError(f"{path}: does not match its checksum in {MANIFEST}; copy it again, or partition again")
    try:
        with safe_open(path, framework="pt") as file:
            there = [name for name in TENSORS if name in file.keys() and (features or name != "x")]  # noqa: SIM118
            content: dict[str, Any] = {name: file.get_tensor(name) for name in there}
        if not features:
            content["x"] = torch.empty(len(content["original_ids"]), 0)
        numbers: dict[str, Any] = {name: getattr(entry, name) for name in NUMBERS}
        shard = Shard(**numbers, **content, folder_content=manifest.content)
        _check_sizes(shard, entry)
        return shard
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise GraphError(f"{path}: not a sound shard ({error}); copy it again, or partition again") from error


def _check_sizes(shard: Shard, entry: Part) -> None:
    """Against the manifest: another part's file in this one's place is found even where nothing else is verified."""
    owned, halo, edges = entry.num_owned, entry.num_halo, entry.num_edges
    lengths = {
        "original_ids": owned,
        "halo_ids": halo,
        "send_rows": sum(shard.send_to),
        "indptr": owned + 1,
        "indices": edges,
        "in_degree": owned + halo,
        "x": owned,
        "y": owned,
        "split": owned,
    }
    for name, length in lengths.items():
        if len(getattr(shard, name)) != length:
            raise ValueError(f"{name} has {len(getattr(shard, name))} rows, the manifest says {length}")
    first = shard.original_ids[:1].tolist()
    if first != list(entry.first_ids) or sum(shard.halo_from) != halo:
        raise ValueError("these are another part's nodes")
    if int(shard.indptr[0]) != 0 or int(shard.indptr[-1]) != edges:
        raise ValueError("indptr does not span the edges")
