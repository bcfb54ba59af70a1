"""`thinwire train` as users run it: kept, killed, resumed, damaged, diverged, joined."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.dist.test_lab import needs_lab
from thinwire import graphs
from thinwire.cli import main
from thinwire.fullgraph import Exact, Sylvie
from thinwire.launch import Lab, lab
from thinwire.training.checkpoint import CheckpointError
from thinwire.training.job import Job
from thinwire.training.saved import expect_same_run

DATA = "synthetic:nodes=1500,classes=4,noise=2,label_noise=0"
WORDS = ["train", "--data", DATA, "--hidden", "32", "--dropout", "0.3", "--norm", "batch", "--checkpoint-every", "4"]
EPOCHS = 40


def thinwire(*words: str, epochs: int = EPOCHS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thinwire", *WORDS, "--epochs", str(epochs), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def result(*words: str, into: Path, epochs: int = EPOCHS) -> dict[str, Any]:
    done = thinwire(*words, "--json", str(into), epochs=epochs)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(into.read_text()))


def epochs_of(out: Path) -> list[int]:
    events = out / "events.jsonl"
    return [json.loads(line)["epoch"] for line in events.read_text().splitlines()] if events.exists() else []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_of(launcher: int) -> list[int]:
    """Process ids of the ranks, which its fork server has forked; its resource tracker has no children."""
    return [rank for child in children(launcher) for rank in children(child)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that nothing befell."""
    folder = tmp_path_factory.mktemp("whole")
    return result("--method", "sylvie", "--out", str(folder / "run"), into=folder / "result.json") | {"folder": folder}


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_and_resumed_the_losses_are_the_same_bits(tmp_path: Path, whole: dict[str, Any], victim: int) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "thinwire", *WORDS, "--epochs", "400", "--method", "sylvie", "--out", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while len(epochs_of(out)) < 14:
            assert time.monotonic() < end
            assert running.poll() is None
            time.sleep(0.01)
        os.kill(ranks_of(running.pid)[victim], signal.SIGKILL)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 2
    assert "SIGKILL" in said
    assert "SIGKILL" in json.loads((out / "failed.json").read_text())["error"]
    assert len(epochs_of(out)) < EPOCHS
    resumed = result("--method", "sylvie", "--out", str(out), "--resume", into=tmp_path / "result.json")
    assert resumed["losses"] == whole["losses"]
    assert epochs_of(out) == list(range(EPOCHS))
    assert resumed["test_score"] == whole["test_score"]
    assert not (out / "failed.json").exists()
    assert json.loads((out / "result.json").read_text())["losses"] == whole["losses"]
    assert not list((out / "checkpoints").glob(".*"))


def test_what_is_kept(whole: dict[str, Any]) -> None:
    out = whole["folder"] / "run"
    plan = json.loads((out / "plan.json").read_text())
    assert plan["method"] == "sylvie"
    options = {"bits": 1, "code": "plain", "budget": 0.0, "staleness": 1, "sync_every": 10}
    assert plan["plan"] == {"method": "sylvie", **options}
    once, *later = plan["messages"]
    assert (once["sends"], once["once"]) == (64, True)
    assert [row["sends"] for row in later] == [32, 4]  # the last layer sends what comes out of its map
    # The plan says what the door counts, and so what is saved.
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    halo_rows = once["forward_bytes"] / (4 * 64)
    saved = 2 * halo_rows * 4 * (32 + 4) - sum(row["forward_bytes"] + row["backward_bytes"] for row in later)
    assert events[-1]["float32_bytes"] - events[-1]["bytes"] == saved
    assert (plan["epochs"], plan["launch"]) == (EPOCHS, {"kind": "local", "ranks": 2})
    assert plan["machine"]["torch"] == torch.__version__
    assert json.loads((out / "result.json").read_text())["test_score"] == whole["test_score"]
    # Where each rank's time and bytes went, in the epochs that were looked at.
    assert [event["epoch"] for event in events if "spans" in event] == [2, 3]
    assert [event["epoch"] for event in events if "ranks" in event] == [2, 3, *range(4, EPOCHS, 5)]
    assert [event["stale"] for event in events] == [(epoch + 1) % 10 != 0 and epoch > 0 for epoch in range(EPOCHS)]
    for event in (row for row in events if "ranks" in row):
        assert sum(channel["bytes"] for channel in event["channels"].values()) == event["bytes"]
        assert sum(channel["float32_bytes"] for channel in event["channels"].values()) == event["float32_bytes"]
        assert sum(size for rank in event["ranks"] for size in rank["bytes_to"].values()) == event["bytes"]
        for rank in event["ranks"]:
            assert rank["compute_s"] + rank["codec_s"] + rank["exposed_s"] == pytest.approx(rank["seconds"])
            assert rank["codec_s"] > 0
            assert 0 <= rank["hidden_s"] <= rank["compute_s"] + rank["codec_s"] + 1e-6
    waits = [span for span in events[2]["spans"][0] if span[0] == "wait"]
    assert {span[1] for span in waits} >= {"gradients", "convs.1.forward"}
    assert all(0 <= start <= end <= events[2]["seconds"] + 0.01 for _, _, start, end, _ in waits)
    label = np.load(out / "predictions.npz", allow_pickle=False)["label"]
    graph = graphs.load(DATA)
    right = label == graph.y
    assert float(right[graph.split == graphs.TEST].mean()) == pytest.approx(whole["test_score"])
    assert whole["test_score"] > 0.8


def test_damage_is_named_and_the_one_before_is_offered(tmp_path: Path, whole: dict[str, Any]) -> None:
    out = tmp_path / "run"
    before = result("--method", "sylvie", "--out", str(out), into=tmp_path / "first.json", epochs=20)
    last = out / "checkpoints" / "epoch-000020.rank-1-of-2.safetensors"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    words = ["--method", "sylvie", "--out", str(out), "--resume"]
    refused = thinwire(*words)
    assert refused.returncode == 2
    assert f"{last}: does not match its checksum" in refused.stderr
    assert "--resume-epoch 16 goes on from there" in refused.stderr
    assert "Traceback" not in refused.stderr
    second = result(*words, "--resume-epoch", "16", into=tmp_path / "second.json")
    assert second["losses"][:20] == before["losses"]
    assert second["losses"] == whole["losses"]


def test_weights_go_on_at_another_number_of_ranks_and_back(tmp_path: Path) -> None:
    """Messages start afresh."""
    out = tmp_path / "run"
    words = ["--method", "sylvie", "--out", str(out), "--resume"]
    whole = result(*words[:-1], into=tmp_path / "first.json")
    more = result(*words, "--workers", "3", into=tmp_path / "third.json", epochs=EPOCHS + 5)
    assert more["losses"][:EPOCHS] == whole["losses"]
    assert more["workers"] == 3
    assert max(more["losses"][EPOCHS:]) < 2 * whole["losses"][-1]
    # And back again, from the later one.
    back = result(*words, into=tmp_path / "fourth.json", epochs=EPOCHS + 7)
    assert back["losses"][: EPOCHS + 5] == more["losses"]
    # As if a kill had come between the ranks' first checkpoints: from the start.
    for path in (out / "checkpoints").iterdir():
        if not path.name.startswith("epoch-000047.rank-0-of-2"):
            path.unlink()
    assert result(*words, into=tmp_path / "fifth.json")["losses"] == whole["losses"]
    assert epochs_of(out) == list(range(EPOCHS))


def test_only_the_same_run_goes_on() -> None:
    job: Job[Any] = Job(Sylvie(), "data")
    then = {"job": job.identity(), "world_size": 2, "data": "a"}
    expect_same_run(then, {**then, "job": replace(job, epochs=9, out="x", resume=True).identity()})
    expect_same_run(then, {**then, "world_size": 3, "data": "b"})
    for now, message in [
        ({**then, "job": replace(job, method=Exact()).identity()}, r"method sylvie \(now exact\)"),
        ({**then, "job": replace(job, lr=0.1).identity()}, r"lr 0.01 \(now 0.1\)"),
        ({**then, "data": "b"}, "other shards"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            expect_same_run(then, now)


def test_mistakes_about_folders(tmp_path: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in [
        (["--out", str(whole["folder"] / "run")], "is not empty; give --resume"),
        (["--resume"], "say which folder"),
        (["--resume", "--out", str(tmp_path / "none")], "holds no run"),
        (["--resume", "--out", str(whole["folder"] / "run"), "--data", "synthetic"], f"was trained on {DATA}"),
        (["--dropout", "1"], "--dropout is 1.0; give 0 or more, below 1"),
        (["--bits", "2"], "--bits is an option of sylvie; exact has no options"),
        (["--method", "sylvie", "--balance", "0.2"], "--balance is an option of adaqp; sylvie has --bits"),
        (["--sync-every", "3"], "--sync-every is an option of pipe, sylvie, sylvie3d, adaqp"),
        (["--against", "adaqp --sync-every 0"], "leave 0 out"),
        (["--rate", "10mbit"], "say how many with --hosts"),
        (["--resume-epoch", "3"], "goes with --resume"),
        (["--resume-epoch", "last"], "last is no point of a run; give epochs, as in 3"),
        (["--checkpoint-steps", "5"], "--checkpoint-steps goes with salient"),
    ]:
        with pytest.raises(SystemExit) as left:
            main([*WORDS, *words])
        assert left.value.code == 2
        assert message in capsys.readouterr().err


def test_a_run_that_diverges_says_where(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--norm", "none", "--checkpoint-every", "1", "--lr", "1e18", "--out", str(out)]
    done = thinwire(*words)
    assert done.returncode == 2
    assert "convs." in done.stderr
    assert "'s message can't be sent in epoch 2" in done.stderr
    assert "is not finite" in done.stderr
    assert "the checkpoint after epoch 1 stays" in done.stderr
    assert "Traceback" not in done.stderr
    assert (out / "checkpoints" / "epoch-000001.rank-0-of-2.json").exists()
    alone = thinwire("--workers", "1", "--norm", "none", "--lr", "1e18")  # sends no messages
    assert alone.returncode == 2
    assert "the loss is nan at epoch 2, by rank 0" in alone.stderr


def test_torchrun_with_two_ranks_compares_two_methods(tmp_path: Path) -> None:
    """Shards are made by the first of them; scores of several labels, as of the predictions that are kept."""
    target, out = tmp_path / "result.json", tmp_path / "run"
    data = "synthetic:nodes=800,classes=6,multilabel=true,noise=2"
    train = ["train", "--data", data, "--method", "sylvie", "--against", "exact", "--epochs", "8", "--hidden", "16"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "thinwire", *train, "--out", str(out), "--json", str(target)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    trained = json.loads(target.read_text())
    assert trained["workers"] == 2
    assert trained["against"]["method"] == "exact"
    graph = graphs.load(data)
    predicted = np.load(out / "predictions.npz")["label"][graph.split == graphs.TEST]
    known = graph.y[graph.split == graphs.TEST]
    f1 = 2 * (predicted * known).sum() / (predicted.sum() + known.sum())
    assert trained["test_score"] == pytest.approx(f1)
    assert 0.1 < f1 < 1


@needs_lab
def test_torchrun_trains_across_two_hosts_like_our_own_ranks(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", lab.address(0), "--master-port", "29500"]
    train = [*WORDS, "--epochs", "10", "--json", str(target)]
    with Lab(2) as hosts:
        nodes = []
        for node, namespace in enumerate(hosts.namespaces):
            enter = ["ip", "netns", "exec", namespace, sys.executable, "-m", "torch.distributed.run"]
            command = [*enter, "--node-rank", str(node), *words, "-m", "thinwire", *train]
            nodes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            )
        said = [node.communicate(timeout=100) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "test score" in said[0][0]
    assert "test score" not in said[1][0]  # the first one tells
    across = json.loads(target.read_text())
    assert across["workers"] == 2
    exact = result(into=tmp_path / "own.json", epochs=10)
    assert across["losses"] == exact["losses"]
