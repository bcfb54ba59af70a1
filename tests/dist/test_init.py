"""thinwire.init: one call, however a script was started."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.dist import work
from tests.dist.test_leaving import environment, job
from thinwire import launch
from thinwire.launch import RankFailed

SUM = """
import sys
import torch
import torch.distributed as dist
import thinwire
with thinwire.init(limit_s=20) as door:
    total = door.all_reduce(torch.tensor([door.rank + 1.0]), channel="sum").wait()
    facts = [door.rank, door.world_size, door.local_rank, str(door.device), int(total)]
sys.stdout.write(f"RESULT {facts} {dist.is_initialized()}\\n")
"""
# A rank fails, as the others wait for it.
FAILS = """
import torch
import thinwire
with thinwire.init() as door:
    door.barrier(channel="begin")
    if door.rank == 1:
        raise KeyError("mine")
    door.all_reduce(torch.ones(1 << 20), channel="sum").wait()
"""
FAILS_OPEN = FAILS.replace("with thinwire.init() as door:", "door = thinwire.init()\nif door:")
# Nothing closes the door: the end of the process does.
OPEN = """
import atexit, sys
import torch, torch.distributed as dist
atexit.register(lambda: sys.stdout.write(f"RESULT {dist.is_initialized()}\\n"))
import thinwire
door = thinwire.init()
door.all_reduce(torch.ones(3), channel="sum").wait()
"""
TWICE = """
import sys
import torch.distributed as dist
import thinwire
with thinwire.init() as first:
    with thinwire.init() as second:
        second.barrier(channel="x")
    there = dist.is_initialized()
    first.barrier(channel="x")
with thinwire.init() as again:
    gathered = again.gather_json(again.rank, channel="x")
sys.stdout.write(f"RESULT {there} {gathered}\\n")
"""
TORCHS_OWN = """
import sys
import torch.distributed as dist
import thinwire
dist.init_process_group("gloo")
with thinwire.init() as door:
    gathered = door.gather_json(door.rank, channel="x")
dist.barrier()
sys.stdout.write(f"RESULT {gathered} {dist.is_initialized()}\\n")
dist.destroy_process_group()
"""


def said(folder: Path, text: str, ranks: int) -> list[str]:
    """What a script writes, alone or under torchrun."""
    script = folder / "script.py"
    script.write_text(text)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    command = [sys.executable, *torchrun, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return sorted(line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT"))


def test_alone_it_is_a_job_of_one_rank(tmp_path: Path) -> None:
    assert said(tmp_path, SUM, 0) == ["[0, 1, 0, 'cpu', 1] False"]


def test_under_torchrun_it_joins_and_leaves(tmp_path: Path) -> None:
    assert said(tmp_path, SUM, 2) == ["[0, 2, 0, 'cpu', 3] False", "[1, 2, 1, 'cpu', 3] False"]


def test_a_second_door_is_one_more_and_a_closed_job_may_be_joined_again(tmp_path: Path) -> None:
    assert said(tmp_path, TWICE, 2) == ["True [0, 1]"] * 2


def test_a_process_group_that_was_there_stays(tmp_path: Path) -> None:
    assert said(tmp_path, TORCHS_OWN, 2) == ["[0, 1] True"] * 2


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_door_left_open_closes_with_the_process(ranks: int, tmp_path: Path) -> None:
    assert said(tmp_path, OPEN, ranks) == ["False"] * max(1, ranks)


def test_inside_launch_run_it_takes_the_group_there_is() -> None:
    assert launch.run(work.inits, workers=3) == [([0, 1, 2], rank, True) for rank in range(3)]


@pytest.mark.parametrize("text", [FAILS, FAILS_OPEN], ids=["with", "without with"])
def test_an_error_on_one_rank_ends_all(text: str, tmp_path: Path) -> None:
    """That rank by its own error, the others since it has left; nobody hangs."""
    script = tmp_path / "script.py"
    script.write_text(text)
    ranks = job([str(script)], 3)
    try:
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [1, 1, 1]
    assert "KeyError: 'mine'" in errors[1]
    for error in (errors[0], errors[2]):
        assert "PeerLost: rank 1 has left, on channel 'sum'" in error


def test_an_error_inside_launch_run_is_the_ranks() -> None:
    with pytest.raises(RankFailed, match="rank 1 was asked to fail"):
        launch.run(work.inits_and_fails, 1, workers=2)


def test_ranks_that_came_for_something_else_are_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nimport thinwire\nfrom tests.dist import work\n"
        "if os.environ['RANK'] == '1':\n    thinwire.launch.run(work.add_ranks, 10, workers=2)\nthinwire.init()\n"
    )
    ranks = job([str(script)], 2)
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    words = "rank 0 has come for thinwire.init(), rank 1 has come for add_ranks; start all ranks with the same command"
    assert all(words in error for error in errors), errors
