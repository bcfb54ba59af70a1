"""The workload `fsdp` and the example."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gradients.fsdp import work
from thinwire import launch
from thinwire.bench import fsdp as workload
from thinwire.bench.case import Case, load_case
from thinwire.links import Door

PRELOAD = (*work.PRELOAD, "transformers.models.llama.modeling_llama")
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "own_fsdp.py"
OURS = "uniform:8 --parameters uniform:4"


def rows(case: Case) -> dict[str, Any]:
    with Door() as door:
        task = workload.prepare(door, case, Path())
        lines = {}
        for method in case.methods:
            door.books.take()
            facts = workload.step(door, method, task, case, 1)
            count = workload.units(method, case.settings)
            channels = {name: 2 * size // count for name, size in work.books_of(door).items()}  # of both ranks
            lines[method] = [{"channels": channels} | facts]
    return {method: workload.summary(case, method, lines) for method in case.methods}


def test_methods_are_compared_by_loss_and_bytes_each_way() -> None:
    settings = {"task": "llama", "layers": 1, "width": 64, "batch": 2, "steps": 4}
    case = Case("c", "fsdp", ("fsdp2", "fsdp2 --keep", "none --keep", OURS, "local"), 2, settings=settings)
    workload.check(case.methods, case.settings)
    rows_by_method = launch.run(rows, case, workers=2)[0]
    assert rows_by_method["fsdp2"]["loss_beside"] == 0.0
    for exact in ("fsdp2 --keep", "none --keep"):
        assert rows_by_method[exact]["loss"] == pytest.approx(rows_by_method["fsdp2"]["loss"], rel=1e-5)
        assert rows_by_method[exact]["gradients_thinner"] == pytest.approx(1.0, abs=0.01)
    assert (
        1.2 < rows_by_method["fsdp2 --keep"]["parameters_thinner"] < 2.0
    )  # a block's second gather, but not the root's
    assert rows_by_method[OURS]["loss"] == pytest.approx(rows_by_method["fsdp2"]["loss"], rel=0.01)
    assert rows_by_method[OURS]["gradients_thinner"] > 3.5
    assert rows_by_method[OURS]["parameters_thinner"] > 3.5
    assert "loss" not in rows_by_method["local"]


def test_the_case_is_one() -> None:
    case = load_case(ROOT / "benchmarks/cases/gradients-fsdp-llama.toml")
    workload.check(case.methods, case.settings)
    for method in ("wavelet", "sign --parameters sign", "sign --often"):
        with pytest.raises(ValueError, match=r"wavelet|uniform:8, uniform:4|give a codec"):
            workload.check((method,), case.settings)
    with pytest.raises(ValueError, match='task = "llama"'):
        workload.check(case.methods, {"task": "gpt"})


def test_the_example_learns() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"steps: (\d+\.\d+)", done.stdout)[0]) < 0.4  # 0.69 by guessing
    assert min(map(float, re.findall(r"(\d+\.\d+) times fewer", done.stdout))) > 3.5
