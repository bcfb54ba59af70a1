"""`thinwire plan minibatch`: what it predicts is what a run then counts; and what it can't answer it refuses."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

THINWIRE = [sys.executable, "-m", "thinwire"]
DATA = ["--data", "synthetic:nodes=4000,degree=8,classes=5,features=12", "--workers", "3", "--hidden", "16"]
SAMPLING = ["--batch", "64", "--fanouts", "4,3,2"]


def test_predicted_before_any_run_and_counted_in_it(tmp_path: Path) -> None:
    said = tmp_path / "plan.json"
    more = ["--caches", "0,0.2,2", "--policies", "vip,degree,simulation,none", "--json", str(said)]
    done = subprocess.run(
        [*THINWIRE, "plan", "minibatch", *DATA, *SAMPLING, *more],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "rows fetched" in done.stdout
    plan = json.loads(said.read_text())
    rows = {(row["cache_policy"], row["cache"]): row for row in plan["rows"]}
    assert len(rows) == 12
    assert rows["none", 2.0]["remote_rows"] == rows["vip", 0.0]["remote_rows"]
    assert rows["vip", 0.0]["remote_rows"] > rows["vip", 0.2]["remote_rows"] > rows["vip", 2.0]["remote_rows"]
    assert rows["vip", 0.0]["remote_rows"] > rows["simulation", 0.2]["remote_rows"] > rows["vip", 0.2]["remote_rows"]
    assert rows["vip", 2.0]["memory_bytes"] > rows["vip", 0.0]["memory_bytes"]
    ran = tmp_path / "run.json"
    cached = ["--method", "salient", "--cache", "0.2", "--epochs", "3", "--json", str(ran)]
    subprocess.run([*THINWIRE, "train", *DATA, *SAMPLING, *cached], check=True, timeout=100, capture_output=True)
    counted = json.loads(ran.read_text())
    assert counted["bytes_per_epoch"] == pytest.approx(rows["vip", 0.2]["bytes_per_epoch"], rel=0.1)
    assert counted["predicted"]["bytes_per_epoch"] == rows["vip", 0.2]["bytes_per_epoch"]
    assert counted["cache_fill_bytes"] == rows["vip", 0.2]["cache_fill_bytes"] > 0
    assert rows["vip", 0.0]["cache_fill_bytes"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--caches", "0,x"], "give replication factors"),
        (["--policies", "magic"], "give some of vip"),
        (["--layers", "2", "--fanouts", "3"], "a fan-out for each layer"),
        (["--workers", "0"], "give 1 or more"),
    ],
)
def test_what_it_can_not_answer(options: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused("plan", "minibatch", *options)
