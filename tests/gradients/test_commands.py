"""`thinwire plan gradients`, the example, and the two workloads on ranks of this machine."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thinwire import launch
from thinwire.bench import convergence, fusion
from thinwire.bench import gradients as workload
from thinwire.bench.case import Case
from thinwire.links import Door

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "own_gradients.py"


def test_plan_says_groups_and_steps_beforehand(tmp_path: Path) -> None:
    words = ["plan", "gradients", "--network", "tests.gradients.own:make", "--codec", "topk:0.05"]
    files = ["--json", str(tmp_path / "plan.json"), "--trace", str(tmp_path / "trace.json")]
    command = [sys.executable, "-m", "thinwire", *words, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "topk:0.05" in done.stdout
    content = json.loads((tmp_path / "plan.json").read_text())
    assert {row["method"] for row in content["rows"]} == {"cupcake", "none", "bfloat16", "layer-wise", "one"}
    assert content["recommended"] == min(content["rows"], key=lambda row: row["step_s"])["method"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_plan_names_what_is_no_network() -> None:
    with pytest.raises(ValueError, match=r"returns \(model, batch, loss_fn\)"):
        fusion.load("tests.nowhere:make")
    with pytest.raises(ValueError, match=r"return \(model, batch, loss_fn\)"):
        fusion.load("tests.gradients.work:built")


def test_the_example_learns() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"steps: (\d+\.\d+)", done.stdout)[0]) < 0.6  # 0.69 by guessing
    assert len(EXAMPLE.read_text().splitlines()) <= 100


def rows(case: Case, folder: str) -> dict[str, Any]:
    module: Any = convergence if case.workload == "convergence" else workload
    with Door() as door:
        prepared = module.prepare(door, case, Path(folder))
        steps = {method: [module.step(door, method, prepared, case, 0) | {"seconds": 1.0}] for method in case.methods}
    return {method: module.summary(case, method, steps) | steps[method][0] for method in case.methods}


@pytest.mark.slow
def test_every_method_trains_the_same_network(tmp_path: Path) -> None:
    methods = ("none", "bfloat16", "powersgd", "layer-wise", "one", "equal:3", "cupcake", "auto", "local")
    case = Case("c", "gradients", methods, 2, settings={"blocks": 1, "width": 8, "turn": 1, "batch": 4})
    by_method = launch.run(rows, case, str(tmp_path), workers=2)[0]
    assert set(by_method) == set(methods)
    assert by_method["one"]["groups"] == 1
    assert by_method["equal:3"]["groups"] == 3
    assert by_method["cupcake"]["predicted_s"] <= min(
        by_method[name]["predicted_s"] for name in ("one", "equal:3", "layer-wise")
    )
    assert all(row["loss"] > 0 for row in by_method.values())


def test_convergence_compares_final_losses(tmp_path: Path) -> None:
    settings = {"task": "gpt", "layers": 1, "width": 16, "steps": 12, "batch": 4}
    case = Case("c", "convergence", ("none", "topk:0.1", "sign --no-feedback"), 2, settings=settings)
    by_method = launch.run(rows, case, str(tmp_path), workers=2)[0]
    assert by_method["none"]["loss_ratio"] == 1.0
    assert 0.5 < by_method["topk:0.1"]["loss_ratio"] < 2.0
