import json
import math
import os
from pathlib import Path

import pytest

from thinwire import __version__
from thinwire.artifacts import stamp, write_json


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
