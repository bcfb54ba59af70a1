"""Folders that go with their process, however that ends."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from thinwire import scratch
from thinwire.scratch import scratch_folder

HOLDER = """
import sys, time
from thinwire.scratch import scratch_folder
with scratch_folder("held") as folder:
    (folder / "part").write_bytes(bytes(100))
    print(folder, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, ours alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def holder() -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        return process, Path(said.readline().strip())


def test_it_goes_with_its_block(place: Path) -> None:
    with scratch_folder("one") as folder:
        assert folder.parent == place
        (folder / "deep").mkdir()
    assert not list(place.iterdir())


@pytest.mark.parametrize(("number", "left"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, 1)])
def test_it_goes_with_its_process_or_is_swept(place: Path, number: signal.Signals, left: int) -> None:
    process, folder = holder()
    try:
        with scratch_folder("other"):
            assert folder.exists()  # its process lives
        process.send_signal(number)
        process.wait(timeout=20)
    finally:
        process.kill()
    assert process.returncode in (-number, 128 + number)
    assert len(list(place.iterdir())) == left
    with scratch_folder("other") as other:
        assert list(place.iterdir()) == [other]


def test_only_our_own_are_swept(place: Path) -> None:
    for name in ("thinwire-run", "thinwire-scratch-plain"):
        (place / name).mkdir()
    (place / "kept").mkdir()
    (place / f"{scratch.PREFIX}link").symlink_to(place / "kept")
    with scratch_folder("one"):
        assert sorted(path.name for path in place.iterdir() if "one" not in path.name) == [
            "kept",
            "thinwire-run",
            "thinwire-scratch-link",
        ]
    assert (place / "kept").exists()


def test_sigterm_under_torchrun_leaves_no_shards(tmp_path: Path) -> None:
    words = ["train", "--data", "synthetic:nodes=1500", "--hidden", "8", "--epochs", "100000"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "thinwire"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)}
    job = subprocess.Popen([*command, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 80
        while not any(path.read_text() for path in tmp_path.glob("thinwire-*/events.jsonl")):  # training goes on
            assert time.monotonic() < end
            assert job.poll() is None
            time.sleep(0.05)
        assert list(tmp_path.glob("thinwire-*/shards/manifest.json"))
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=60)
        assert b"SIGKILL" not in said  # which torchrun sends to ranks that do not end within 30 s
    finally:
        job.kill()
    assert not list(tmp_path.glob("thinwire-*"))


def test_one_that_is_swept_before_it_is_locked_is_made_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def made_and_swept(prefix: str) -> str:
        made.append(mkdtemp(prefix=prefix))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr("thinwire.scratch.tempfile.mkdtemp", made_and_swept)
    with scratch_folder("test") as folder:
        assert len(made) == 2
        assert folder == Path(made[1])
        assert folder.is_dir()
