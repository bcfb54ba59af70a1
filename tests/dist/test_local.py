"""Ranks on this machine: results, first failures, signals, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dist import work
from thinwire import launch
from thinwire.launch.rank_spec import rank_spec_from_torchrun

ROOT = Path(__file__).parent.parent.parent
# A shell's background jobs, and what they start, ignore Ctrl-C; these don't.
SLEEPERS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.dist import work
from thinwire import launch
if __name__ == "__main__":
    launch.run(work.note_and_sleep, sys.argv[1], workers=2)
"""


def test_results_come_in_the_order_of_ranks() -> None:
    assert launch.run(work.add_ranks, 10, workers=4) == [(rank, 46) for rank in range(4)]


def test_one_worker_and_large_results() -> None:
    (result,) = launch.run(work.big_result, 3_000_000, workers=1)
    assert result == bytes(3_000_000)


def test_no_rank_begins_or_ends_before_all_are_connected() -> None:
    assert launch.run(work.present, workers=4) == [4] * 4


def test_listening_sockets_are_on_loopback() -> None:
    for addresses in launch.run(work.listening_addresses, workers=2):
        assert addresses
        assert set(addresses) == {"0100007F"}  # 127.0.0.1, as /proc writes it


def test_the_first_failures_traceback_is_what_the_user_sees() -> None:
    with pytest.raises(launch.RankFailed, match="ZeroDivisionError: rank 1 was asked to fail") as caught:
        launch.run(work.fail_on, 1, workers=2)
    assert caught.value.rank == 1
    assert "in fail_on" in caught.value.how


def test_workers_must_be_some() -> None:
    with pytest.raises(ValueError, match="workers is 0; give 1 or more"):
        launch.run(work.add_ranks, 0, workers=0)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(what: str, condition: object, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} took more than {limit_s} s"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_rank_outlives_its_launcher(number: signal.Signals, code: int, tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", SLEEPERS, str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        notes = [tmp_path / "0", tmp_path / "1"]
        wait_for("starting", lambda: all(note.exists() and note.read_text() for note in notes), 60)
        ranks = [int(note.read_text()) for note in notes]
        assert all(alive(rank) for rank in ranks)
        launcher.send_signal(number)
        launcher.communicate(timeout=20)
        wait_for("ending", lambda: not any(alive(rank) for rank in ranks), 5)
    finally:
        launcher.kill()
        launcher.communicate()
    assert launcher.returncode in (code, -number)


TORCHRUN = """
import sys
from tests.dist import work
from thinwire import launch
if __name__ == "__main__":
    # Ranks share one pipe and torchrun takes the buffer away: one write a line.
    sys.stdout.write(f"RESULT {launch.run(work.add_ranks, 10, workers=7)}\\n")
"""


def test_under_torchrun_the_same_call_joins(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    results = sorted(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    assert results == ["RESULT [(0, 21)]", "RESULT [(1, 21)]"]


RESTARTED = """
import os, sys
from tests.dist import work
from thinwire import launch
if __name__ == "__main__":
    result = launch.run(work.add_ranks, 10, workers=7)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit("the first attempt fails")
    sys.stdout.write(f"RESULT {result} {launch.run(work.add_ranks, 20, workers=7)}\\n")
"""


def test_a_job_that_torchrun_starts_again_joins_anew_and_may_run_twice(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(RESTARTED)
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    results = sorted(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    assert results == ["RESULT [(0, 21)] [(0, 41)]", "RESULT [(1, 21)] [(1, 41)]"]


def test_half_of_torchruns_words_is_an_error() -> None:
    assert rank_spec_from_torchrun({}) is None
    with pytest.raises(ValueError, match="RANK but not LOCAL_RANK, MASTER_ADDR, MASTER_PORT; start with torchrun"):
        rank_spec_from_torchrun({"RANK": "0", "WORLD_SIZE": "2"})
