import json
import math
import os
from pathlib import Path

import pytest

from thinwire import __version__
from thinwire.artifacts import new_folder, stamp, write_json


def test_round_trip_and_nothing_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "profile.json"
    content = {**stamp(seed=3, world_size=2), "rows": [1.5, None, "x"]}
    write_json(target, content)
    assert json.loads(target.read_text()) == content
    assert content["thinwire"] == __version__
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    write_json(target, {"good": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(target, {"bad": math.nan})
    assert json.loads(target.read_text()) == {"good": 1}
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_files_and_folders_are_as_the_umask_has_them(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "plan.json", {})
        (tmp_path / "plain").touch()
        with new_folder(tmp_path / "shards", lambda name: True) as folder:
            (folder / "part").touch(mode=0o600)  # as some libraries make their files
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "plan.json") == mode_of(tmp_path / "plain") == 0o666 & ~umask
    assert mode_of(tmp_path / "shards") == 0o777 & ~umask
    assert mode_of(tmp_path / "shards" / "part") == 0o666 & ~umask


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.touch()
    target.chmod(0o640)
    write_json(target, {})
    assert mode_of(target) == 0o640


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_link_is_followed_and_anything_but_a_file_refused(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_json(tmp_path / "link.json", {"new": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == {"new": 1}
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", Path("/dev/stdout"), Path("/proc/x.json")):
        with pytest.raises(ValueError, match="no ordinary file"):
            write_json(special, {})
    assert (tmp_path / "pipe").is_fifo()


def test_a_missing_folder_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist; create it"):
        write_json(tmp_path / "no" / "plan.json", {})
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        write_json(tmp_path, {})
