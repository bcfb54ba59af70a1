"""A process of a job ends after an error as any Python process does: its exit code, atexit, its buffers."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# What is written by atexit goes to a file: torchrun's own output need not have it all.
SCRIPT = """
import atexit, os, sys
from pathlib import Path
from tests.dist import work
from thinwire import launch
if __name__ == "__main__":
    note = Path(sys.argv[1]) / os.environ["RANK"]
    unclosed = open(f"{note}.open", "w")
    atexit.register(lambda: note.write_text(note.read_text() + "last;"))
    note.write_text("")
    try:
        launch.run(work.WORK, workers=7)
    except Exception as error:
        unclosed.write(f"{type(error).__name__}")
    atexit.register(lambda: note.write_text("first;"))
    END
"""


def script(folder: Path, *, work: str, end: str) -> Path:
    path = folder / "job.py"
    path.write_text(SCRIPT.replace("WORK", work).replace("END", end))
    return path


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo"} | more


def job(words: list[str], ranks: int) -> list[subprocess.Popen[str]]:
    """Ranks by torchrun's words, without its agent, which ends all when one has died."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    rank_environment = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env=environment(**rank_environment, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def test_under_torchrun_an_error_that_is_handled_leaves_no_trace(tmp_path: Path) -> None:
    """And the job may go on, if all its ranks do."""
    again = script(tmp_path, work="fail_together", end="assert launch.run(work.add_ranks, 10, workers=7)[0][1] == 21")
    words = ["--standalone", "--nproc-per-node", "2", str(again), str(tmp_path)]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert (tmp_path / str(rank)).read_text() == "first;last;"
        assert (tmp_path / f"{rank}.open").read_text() == "ZeroDivisionError"


ENDS = "raise (SystemExit(3), KeyError('mine'), SystemExit(), KeyError('mine'))[int(os.environ['RANK'])]"


def test_the_exit_code_is_the_scripts(tmp_path: Path) -> None:
    ranks = job([str(script(tmp_path, work="fail_together", end=ENDS)), str(tmp_path)], 2)
    said = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [3, 1], said
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["first;last;"] * 2


def test_a_dead_rank_keeps_nobody_from_ending(tmp_path: Path) -> None:
    """What the others wait for among themselves hangs in gloo for ten minutes."""
    ranks = job([str(script(tmp_path, work="lose_rank_1", end=ENDS)), str(tmp_path)], 4)
    try:
        ranks[1].wait(timeout=80)
        said = [rank.communicate(timeout=80) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [3, -9, 0, 1], said
    for left in (0, 2, 3):
        assert (tmp_path / str(left)).read_text() == "first;last;"
        assert (tmp_path / f"{left}.open").read_text() == "PeerLost"


OPEN = """
import time, torch, torch.distributed as dist
from torch import nn
from thinwire import gradients
from thinwire.links import Door
from thinwire.links.transfer import Transfer
dist.init_process_group("gloo")
model = nn.Linear(600, 8)
def loss_fn(model, batch):
    return model(batch).square().mean()
with Door() as door:
    plan = gradients.plan(gradients.profile(model, torch.ones(2, 600), loss_fn, door, codecs=["sign"]), "sign")
model = gradients.wrap(model, plan)  # with a door of its own, that nobody closes
end = Transfer.end
def end_and_pause(self, error=None):
    end(self, error)
    time.sleep(0.3)
Transfer.end = end_and_pause
for _ in range(3):
    loss_fn(model, torch.ones(2, 600)).backward()
"""


def end_codes(path: Path, script: str) -> list[int]:
    path.write_text(script)
    ranks = job([str(path)], 2)
    try:
        printed = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    print(printed)
    return [rank.returncode for rank in ranks]


def test_a_door_that_nobody_closed_does_not_abort_the_process(tmp_path: Path) -> None:
    """Nor the process group that nobody destroyed. Threads that have ended a transfer go on after the script's end, as
    they may on a busy machine."""
    assert end_codes(tmp_path / "open.py", OPEN) == [0, 0]


UNDER_WAY = """
import time, torch, torch.distributed as dist
from thinwire.links import Door
dist.init_process_group("gloo")
door = Door()
door.all_reduce(torch.ones(4), channel="test").wait()
if door.rank == 0:
    door.all_reduce(torch.ones(4), channel="test")
    door.send(torch.ones(4), 1, channel="test")
    door.receive(16, 1, channel="test")
else:
    time.sleep(4)
"""


def test_a_transfer_that_nobody_waits_for_does_not_abort_the_process(tmp_path: Path) -> None:
    assert end_codes(tmp_path / "under_way.py", UNDER_WAY) == [0, 0]
