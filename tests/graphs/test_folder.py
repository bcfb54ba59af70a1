"""Shards on disk: the same after a file; damage is an error that names the file; writing is all or nothing."""

import json
import random
import shutil
import socket
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thinwire import artifacts
from thinwire.graphs import (
    Graph,
    GraphError,
    Shard,
    check,
    glue,
    load,
    read_manifest,
    read_shard,
    split,
    write_shards,
)
from thinwire.graphs.files import read_folder, read_npz, write_folder, write_npz
from thinwire.graphs.shard import NUMBERS, TENSORS

NAMES = "synthetic:nodes=60,degree=4,classes=3,features=5,seed=4"


def shards_of(graph: Graph, parts: int = 3) -> list[Shard]:
    return list(split(graph, (np.arange(graph.num_nodes) % parts).astype(np.int32), parts))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards", shards_of(load(NAMES)), classes=("a", "b", "c"), settings={"seed": 1})
    return tmp_path / "shards"


def assert_same(one: Shard, other: Shard) -> None:
    for name in NUMBERS:
        assert getattr(one, name) == getattr(other, name)
    for name in TENSORS:
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None) == (second is None)
        if first is not None:
            assert first.dtype == second.dtype
            assert torch.equal(first, second)


def test_shards_survive_a_folder(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert (manifest.num_parts, manifest.classes, manifest.settings) == (3, ("a", "b", "c"), {"seed": 1})
    for shard in shards_of(load(NAMES)):
        assert_same(read_shard(folder, shard.part), shard)
        assert_same(read_shard(folder, shard.part, verify=False), shard)


def test_writing_again_replaces_and_a_crash_leaves_the_old(folder: Path) -> None:
    def crashing() -> Iterator[Shard]:
        yield shards_of(load(NAMES), 2)[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(folder, crashing())
    assert read_manifest(folder).num_parts == 3
    write_shards(folder, shards_of(load(NAMES), 2))
    assert read_manifest(folder).num_parts == 2
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "part0.safetensors", "part1.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["shards"]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds something else, thesis\.tex"):
        write_shards(tmp_path, shards_of(load(NAMES)))
    with pytest.raises(ValueError, match=r"holds something else, thesis\.tex"):
        write_folder(tmp_path, load(NAMES))
    (tmp_path / "thesis.tex").rename(tmp_path / "manifest.json")
    with pytest.raises(ValueError, match=r"holds somebody else's manifest\.json"):
        write_shards(tmp_path, shards_of(load(NAMES)))
    assert (tmp_path / "manifest.json").read_text() == "years of work"


def test_where_one_stands_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for here in (Path(), Path("..")):
        with pytest.raises(ValueError, match=r"is where you are|holds something else"):
            write_shards(here, shards_of(load(NAMES)))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is no folder"):
        write_shards(tmp_path / "file", shards_of(load(NAMES)))


def test_without_an_exchange_of_names_it_works_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_renameat2", lambda first, second: False)
    write_shards(folder, shards_of(load(NAMES), 2))
    assert read_manifest(folder).num_parts == 2
    assert [path.name for path in folder.parent.iterdir()] == ["shards"]


def test_what_a_killed_writer_left_is_swept(folder: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, elsewhere = (
        folder.parent / f".shards.{ended.pid}.{host}.abc" for host in (socket.gethostname(), "another-machine")
    )
    for half_written in (left, elsewhere):
        half_written.mkdir()
        (half_written / "part0.safetensors").touch()
    write_shards(folder, shards_of(load(NAMES), 2))
    assert not left.exists()
    assert elsewhere.exists()  # its process may well be alive, over there


def test_a_swapped_file_is_found_even_unverified(folder: Path) -> None:
    shutil.copy(folder / "part1.safetensors", folder / "part0.safetensors")
    with pytest.raises(GraphError, match="not a sound shard"):
        read_shard(folder, 0, verify=False)


def test_damaged_headers_are_errors(tmp_path: Path) -> None:
    """Inside an archive with right checksums, and in a folder that has none: what numpy's own parser is given."""
    graph = load(NAMES)
    write_folder(tmp_path / "graph", graph)
    rng = random.Random(2)
    for _ in range(300):
        name = rng.choice(["edge_index", "x", "y", "split"])
        path = tmp_path / "graph" / f"{name}.npy"
        kept = path.read_bytes()
        path.write_bytes(damage(kept[:128], rng) + kept[128:])
        with zipfile.ZipFile(tmp_path / "graph.npz", "w") as archive:
            for part in (tmp_path / "graph").iterdir():
                archive.write(part, part.name)
        for source in (tmp_path / "graph", tmp_path / "graph.npz"):
            with suppress(GraphError):
                assert load(str(source)).num_nodes == graph.num_nodes
        path.write_bytes(kept)


def test_swapped_missing_and_foreign_files_are_named(folder: Path) -> None:
    first, second = folder / "part0.safetensors", folder / "part1.safetensors"
    kept = first.read_bytes()
    shutil.copy(second, first)
    with pytest.raises(GraphError, match=r"part0\.safetensors: does not match its checksum"):
        read_shard(folder, 0)
    first.unlink()
    with pytest.raises(GraphError, match=r"part0\.safetensors is missing"):
        read_shard(folder, 0)
    first.write_bytes(kept)
    with pytest.raises(GraphError, match="no part 3; it has 3"):
        read_shard(folder, 3)
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(GraphError, match="format version 99, this thinwire reads 1"):
        read_shard(folder, 0)
    manifest.write_text(json.dumps({**content, "num_nodes": 61}))
    with pytest.raises(GraphError, match="does not match its own checksum"):
        read_shard(folder, 0)
    manifest.unlink()
    with pytest.raises(GraphError, match=r"no manifest\.json"):
        read_shard(folder, 0)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A manifest that somebody else wrote, with a right checksum."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    change(content)
    artifacts.write_sealed(path, content)


@pytest.mark.parametrize("name", ["../part0.safetensors", "/etc/passwd", "deep/part0.safetensors", "..", ".", ""])
def test_a_manifest_leads_nowhere_else(folder: Path, name: str) -> None:
    shutil.copy(folder / "part0.safetensors", folder.parent)  # which would fit
    rewrite(folder, lambda content: content["parts"][0].update(file=name))
    with pytest.raises(GraphError, match=r"manifest\.json: part 0 is in '.*', which leads out of .*shards"):
        read_shard(folder, 0)


def test_a_manifest_lacks_nothing(folder: Path) -> None:
    path = folder / "manifest.json"
    whole = path.read_bytes()
    content = json.loads(whole)
    lacking: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        *(
            (key, lambda manifest, key=key: manifest.pop(key))
            for key in content
            if key not in ("format", "version", "checksum")
        ),
        *(
            (rf"parts\[1\] has no '{key}'", lambda manifest, key=key: manifest["parts"][1].pop(key))
            for key in content["parts"][1]
        ),
        ("num_parts is 'two'; give a whole number", lambda manifest: manifest.update(num_parts="two")),
        ("num_parts is 4, and parts has 3", lambda manifest: manifest.update(num_parts=4)),
    ]
    assert len(lacking) > 20
    for message, change in lacking:
        rewrite(folder, change)
        with pytest.raises(GraphError, match=f"manifest.json: .*{message}"):
            read_manifest(folder)
        path.write_bytes(whole)
    read_manifest(folder)


def damage(content: bytes, rng: random.Random) -> bytes:
    """One of many ways to go wrong."""
    damaged = bytearray(content)
    kind = rng.randrange(6)
    place, length = rng.randrange(len(content)), rng.randrange(1, 40)
    if kind == 0:
        damaged[place] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del damaged[place:]
    elif kind == 2:
        damaged[place : place + length] = rng.randbytes(length)
    elif kind == 3:
        del damaged[place : place + length]
    elif kind == 4:
        damaged[place:place] = rng.randbytes(length)
    else:
        damaged[place : place + length] = bytes(length)
    return bytes(damaged)


def test_five_hundred_kinds_of_damage_to_shards(folder: Path) -> None:
    right = [read_shard(folder, part) for part in range(3)]
    names = ["manifest.json", "part0.safetensors", "part1.safetensors", "part2.safetensors"]
    rng = random.Random(0)
    said = []
    for _ in range(500):
        path = folder / rng.choice(names)
        kept = path.read_bytes()
        path.write_bytes(damage(kept, rng))
        try:
            for part in range(3):
                assert_same(read_shard(folder, part), right[part])
        except GraphError as error:
            said.append((path.name, str(error)))
        path.write_bytes(kept)
    assert len(said) > 400
    assert all(name in error for name, error in said)


def test_five_hundred_kinds_of_damage_to_an_npz(tmp_path: Path) -> None:
    graph = load(NAMES)
    path = tmp_path / "graph.npz"
    write_npz(path, graph)
    kept = path.read_bytes()
    rng = random.Random(1)
    said = []
    for _ in range(500):
        path.write_bytes(damage(kept, rng))
        try:
            assert_equal(check(read_npz(path)), graph)
        except GraphError as error:
            said.append(str(error))
    assert len(said) > 300
    assert all("graph.npz" in error for error in said)


def assert_equal(one: Graph, other: Graph) -> None:
    for name in ("edge_index", "x", "y", "split"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_an_npz_and_a_folder_keep_types_and_are_mapped(tmp_path: Path) -> None:
    graph = load(NAMES)
    assert graph.x.dtype == np.float16
    write_npz(tmp_path / "graph.npz", graph)
    write_folder(tmp_path / "graph", graph)
    for read in (read_npz(tmp_path / "graph.npz"), read_folder(tmp_path / "graph")):
        assert_equal(read, graph)
        assert read.x.dtype == np.float16
        assert read.edge_index.dtype == np.int32
    assert isinstance(read_folder(tmp_path / "graph").x, np.memmap)
    assert_equal(load(str(tmp_path / "graph")), graph)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    evil = np.empty(1, dtype=object)
    np.savez(tmp_path / "evil.npz", edge_index=evil, x=evil, y=evil, split=evil)
    with pytest.raises(GraphError, match="not a sound"):
        load(str(tmp_path / "evil.npz"))
    (tmp_path / "folder").mkdir()
    for name in ("edge_index", "x", "y", "split"):
        np.save(tmp_path / "folder" / f"{name}.npy", evil, allow_pickle=True)
    with pytest.raises(GraphError, match="not a sound"):
        load(str(tmp_path / "folder"))


def test_glue_after_disk(folder: Path) -> None:
    assert_equal(glue([read_shard(folder, part) for part in range(3)]), glue(shards_of(load(NAMES))))
