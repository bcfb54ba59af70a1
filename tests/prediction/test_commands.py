"""`thinwire plan` and `train --method auto`, as a user calls them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.cli.plan import Plan

THINWIRE = [sys.executable, "-m", "thinwire"]
DATA = "synthetic:nodes=1500,degree=8,classes=5,features=12"
MODEL = ["--data", DATA, "--hidden", "16"]


def called(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*THINWIRE, *words], capture_output=True, text=True, timeout=110, check=False)


def test_every_method_is_predicted_and_one_recommended(tmp_path: Path) -> None:
    said = tmp_path / "plan.json"
    done = called("plan", *MODEL, "--layers", "2", "--hosts", "3", "--rate", "10mbit", "--json", str(said))
    assert done.returncode == 0, done.stderr
    plan = json.loads(said.read_text())
    rows = {row["method"]: row for row in plan["rows"]}
    assert set(rows) == {"exact", "pipe", "sylvie --staleness 0", "sylvie", "adaqp", "salient"}
    assert all(row["epoch_s"] > 0 and row["memory_bytes"] > 1 << 20 and row["model"] for row in rows.values())
    assert rows["exact"]["speedup"] == 1
    # At ten megabits thin messages must win, and by about what they are thinner.
    assert plan["recommended"].startswith("sylvie")
    assert rows["sylvie"]["bytes_per_epoch"] < rows["adaqp"]["bytes_per_epoch"] < rows["exact"]["bytes_per_epoch"]
    assert [row["rate"] for row in plan["rates"]][:1] == ["10mbit"]
    assert len(plan["rates"]) == 9
    exact = [row["epoch_s"]["exact"] for row in plan["rates"]]
    assert exact[0] > 2 * exact[-1]
    assert "recommended: thinwire train sylvie" in done.stdout


def test_auto_follows_the_prediction_and_goes_on_with_what_it_chose(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", *MODEL, "--method", "auto", "--out", str(out), "--checkpoint-every", "1"]
    done = called(*words, "--epochs", "3")
    assert done.returncode == 0, done.stderr
    plan = json.loads((out / "plan.json").read_text())
    chosen = plan["prediction"]["recommended"]
    assert plan["method"] == chosen
    assert chosen.split()[0] == plan["plan"]["method"]
    assert f"auto: {chosen}" in done.stdout
    assert json.loads((out / "result.json").read_text())["method"] == plan["plan"]["method"]
    again = called(*words, "--epochs", "4", "--resume")
    assert again.returncode == 0, again.stderr
    assert "auto:" not in again.stdout
    assert json.loads((out / "plan.json").read_text())["prediction"] == plan["prediction"]
    assert len((out / "events.jsonl").read_text().splitlines()) == 4


def test_a_plan_between_meshes(tmp_path: Path) -> None:
    said = tmp_path / "plan.json"
    done = called("plan", "reshard", "1x1 R R -> 2x4 R R of 1024x1024", "--json", str(said))
    assert done.returncode == 0, done.stderr
    rows = {row["method"]: row for row in json.loads(said.read_text())["rows"]}
    assert rows["send_recv"]["bytes"] == 8 * rows["auto"]["bytes"] / 2
    assert rows["auto"]["seconds"] <= min(row["seconds"] for row in rows.values())
    assert all(row["seconds"] >= row["bound_s"] for row in rows.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "--rate", "1gbit", "--profile", "nowhere.json", "--hosts", "2"], "leave --hosts and --rate out"),
        (["plan", "--rate", "2gbit"], "Give --hosts"),
        (["plan", "--profile", "nowhere.json"], "is no profile"),
        (["plan", "--methods", "exact,magic"], "magic"),
        (["plan", "--methods", "exct"], "Did you mean 'exact'?"),
        (["train", "--method", "auto", "--sync-every", "5"], "leave --sync-every out"),
        (["train", "--method", "auto", "--profile", "nowhere.json"], "is no profile"),
        (["plan", "--hosts", "-1"], "give 1 or more"),
        (["plan", "reshard", "here -> there"], "write it like"),
        (["plan", "gradient"], "Did you mean 'gradients'?"),
        (["train", "--method", "sylvi"], "Did you mean 'sylvie'?"),
        (["train", "--mehtod", "sylvie"], "--method"),
        (["trian"], "Did you mean 'train'?"),
    ],
)
def test_what_can_not_be_done_is_said(words: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(*words)


def test_methods_are_told_apart_from_the_commas_of_their_options() -> None:
    chosen = Plan(methods="exact, sylvie --bits 2,adaqp --bits-choice 2,4,8,salient")
    assert chosen._methods() == ["exact", "sylvie --bits 2", "adaqp --bits-choice 2,4,8", "salient"]


@pytest.mark.slow
def test_a_job_of_torchruns_plans_together() -> None:
    words = ["-m", "thinwire", "plan", *MODEL, "--methods", "exact,sylvie"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *torchrun]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("recommended: thinwire train") == 1
