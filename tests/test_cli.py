"""The command as a user meets it: a process of its own, its output, its exit code."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thinwire import __version__, graphs
from thinwire.cli import doctor, main
from thinwire.graphs.files import write_npz


def thinwire(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thinwire", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_version_and_help() -> None:
    assert thinwire("--version").stdout.strip() == f"thinwire {__version__}"
    shown = thinwire("bench", "--help")
    assert shown.returncode == 0
    assert "thinwire bench codec" in shown.stdout


def test_doctor_says_what_is_here_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "found.json"
    done = thinwire("doctor", "--json", str(target))
    assert done.returncode == 0, done.stderr
    assert __version__ in done.stdout
    findings = {finding["what"]: finding for finding in json.loads(target.read_text())["findings"]}
    assert findings["backends"]["found"].startswith("gloo")
    monkeypatch.setattr("thinwire.cli.doctor.native_module", lambda: None)
    monkeypatch.setattr("thinwire.launch.lab.missing", lambda: "emulated hosts need root; run as root")
    missing = {finding.what: finding for finding in doctor.findings() if finding.state == doctor.MISSING}
    assert set(missing) == {"kernels", "emulated hosts"}
    assert all(finding.advice for finding in missing.values())


def test_bench_codec_prints_a_table_and_writes_rows(tmp_path: Path) -> None:
    target = tmp_path / "codec.json"
    done = thinwire("bench", "codec", "--rows", "500", "--columns", "33", "--json", str(target))
    assert done.returncode == 0, done.stderr
    assert "Uniform(4)" in done.stdout
    assert "…" not in done.stdout  # the table fits a terminal of 80 columns
    result = json.loads(target.read_text())
    assert result["case"] == "codec"
    keys = {"codec", "bits", "encode_gbps", "decode_gbps", "memcpy_gbps"}
    keys |= {"encode_vs_memcpy", "decode_vs_memcpy", "encode_vs_twin"}
    assert all(keys <= row.keys() for row in result["rows"])
    assert {row["bits"] for row in result["rows"] if row["codec"].startswith("Uniform")} == {1, 2, 4, 8}


@pytest.mark.slow
def test_profile_of_local_ranks(tmp_path: Path) -> None:
    target = tmp_path / "profile.json"
    done = thinwire("profile", "--workers", "2", "--check", "--out", str(target))
    assert done.returncode == 0, done.stderr
    assert "Predicted beside measured" in done.stdout
    profile = json.loads(target.read_text())
    assert {(row["src"], row["dst"]) for row in profile["links"]} == {(0, 1), (1, 0)}
    assert all(row["bytes_per_s"] > 1e6 and 0 < row["latency_s"] < 1 for row in profile["links"])
    assert set(profile["collectives"]) == {"all_to_all", "all_gather", "all_reduce", "broadcast"}
    assert len(profile["check"]) == 20
    assert all({"collective", "bytes", "predicted_s", "measured_s"} <= row.keys() for row in profile["check"])
    assert profile["codecs"]["Uniform(1)"]["encode_gbps"] > 0


def test_partition_writes_shards_and_says_what_they_are(tmp_path: Path) -> None:
    out, target = tmp_path / "shards", tmp_path / "parts.json"
    done = thinwire("partition", "synthetic:nodes=2000", "--parts", "3", "--out", str(out), "--json", str(target))
    assert done.returncode == 0, done.stderr
    assert "balance" in done.stdout
    assert "MB at one bit" in " ".join(done.stdout.split())
    assert "…" not in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", *(f"part{p}.safetensors" for p in range(3))]
    result = json.loads(target.read_text())
    assert sum(part["owned"] for part in result["parts"]) == 2000
    assert result["halo_rows"] > 0
    assert set(result["seconds"]) == {"load", "partition", "shard"}
    assert result["peak_rss_bytes"] > 0
    again = thinwire("partition", "synthetic:nodes=100", "--parts", "1", "--out", str(out))
    assert again.returncode == 0, again.stderr
    assert "halo rows: 0" in again.stdout


def test_train_compares_what_it_sent_with_float32(tmp_path: Path) -> None:
    shards, target = tmp_path / "shards", tmp_path / "result.json"
    data = "synthetic:nodes=2000,classes=4,noise=2,label_noise=0"
    assert thinwire("partition", data, "--parts", "2", "--out", str(shards)).returncode == 0
    words = ["--data", str(shards), "--method", "sylvie", "--epochs", "30", "--hidden", "64", "--json", str(target)]
    done = thinwire("train", *words)
    assert done.returncode == 0, done.stderr
    progress = r"sylvie: epoch 30/30  loss \d\.\d+  validation \d+\.\d+%  \d+\.\d+ s  \d+\.\d+ MB  0 s left"
    assert re.search(progress, done.stdout)
    for row in ("test score", "seconds an epoch, median", "bytes an epoch, all ranks", "in float32 they were"):
        assert re.search(rf"{row} +[\d.,]+", done.stdout), row
    result = json.loads(target.read_text())
    keys = {"method", "model", "data", "workers", "epochs", "seed", "losses", "val_score", "test_score"}
    keys |= {"epoch_s_median", "bytes_per_epoch", "float32_bytes_per_epoch", "exposed_s_per_epoch", "peak_rss_bytes"}
    assert keys <= result.keys()
    assert len(result["losses"]) == 30
    assert result["test_score"] > 0.7
    assert result["float32_bytes_per_epoch"] > 4 * result["bytes_per_epoch"]
    wrong = thinwire("train", "--data", str(shards), "--workers", "3")
    assert wrong.returncode == 2
    assert "has 2 parts, this run 3 ranks; give --workers 2" in " ".join(wrong.stderr.split())


def test_a_run_without_test_nodes_has_no_test_score(tmp_path: Path) -> None:
    graph = graphs.load("synthetic:nodes=300,classes=4")
    split = np.where(graph.split == graphs.TEST, graphs.UNUSED, graph.split).astype(graph.split.dtype)
    write_npz(tmp_path / "graph.npz", replace(graph, split=split))
    out, target, reported = tmp_path / "run", tmp_path / "result.json", tmp_path / "report.json"
    words = ["--epochs", "2", "--workers", "1", "--out", str(out), "--json", str(target)]
    done = thinwire("train", "--data", str(tmp_path / "graph.npz"), *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"test score +-\s", done.stdout)
    assert re.search(r"validation score +\d+\.\d+%", done.stdout)
    result = json.loads(target.read_text())
    assert result["test_score"] is None
    assert 0 <= result["val_score"] <= 1
    assert thinwire("report", str(out), "--json", str(reported)).returncode == 0
    assert json.loads(reported.read_text())["runs"][0]["test_score"] is None
    assert "0.00%" not in (out / "report.html").read_text()


def test_mistakes_are_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in [
        (("bench", "codecs"), "there is no case 'codecs'; give codec, batches or a case file"),
        (("bench",), "which case?"),
        (("partition", "cora", "--out", str(tmp_path / "x")), "no file, folder or data set 'cora'"),
        (("partition", "synthetic", "--parts", "0", "--out", str(tmp_path / "x")), "parts is 0; give 1 or more"),
        (("profile", "--rate", "fast"), "for example 100mbit"),
        (("bench", "codec", "--repeats", "0"), "--repeats is 0; give 1 or more"),
        (("bench", "codec", "--json", str(tmp_path / "no" / "x.json")), "does not exist; create it"),
    ]:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        assert left.value.code == 2
        printed = capsys.readouterr().err
        assert said in " ".join(printed.split())
        assert "Traceback" not in printed
