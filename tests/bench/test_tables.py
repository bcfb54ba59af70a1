"""A case's table, to the character: saved results as they were shown when they were saved."""

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from thinwire.bench import harness
from thinwire.bench.case import Case
from thinwire.bench.result import CaseResult, MethodRow
from thinwire.cli import tables

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"
GOLDEN = Path(__file__).parent / "golden"


def saved(content: dict[str, Any]) -> CaseResult:
    names = {field.name for field in fields(MethodRow)}
    rows = [
        MethodRow(
            **{name: value for name, value in row.items() if name in names},
            more={name: value for name, value in row.items() if name not in names},
        )
        for row in content["rows"]
    ]
    case = Case(
        name=content["case"],
        workload=content["workload"],
        methods=tuple(content["methods"]),
        hosts=content["hosts"],
        rate=content["rate"],
        settings=content["settings"],
    )
    return CaseResult(case, rows, content["failed"])


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_a_saved_result_is_shown_as_it_was(golden: Path) -> None:
    shown = io.StringIO()
    Console(width=80, file=shown).print(
        tables.methods(saved(json.loads((RESULTS / f"{golden.stem}.json").read_text())))
    )
    assert [line.rstrip() for line in shown.getvalue().splitlines()] == golden.read_text().splitlines()


def test_four_tables_are_compared() -> None:
    assert len(list(GOLDEN.glob("*.txt"))) == 4


@pytest.mark.parametrize("workload", [*harness.WORKLOADS, "predict"])
def test_a_case_that_failed_at_once_has_a_table(workload: str) -> None:
    shown = io.StringIO()
    Console(width=80, file=shown).print(tables.methods(CaseResult(Case("c", workload, ("a",), hosts=2), [], "no")))
    assert f"c: {workload} on 2 hosts at 1gbit" in shown.getvalue()
