"""The start of a run: loading has no limit, and ranks that were started with different things say so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training import work
from thinwire import fullgraph, launch, minibatch
from thinwire.training.job import Job

JOB: Job[Any] = Job(fullgraph.Sylvie(), data="synthetic:nodes=200", limit_s=2.0)


def begin(*jobs: Job[Any], loads_s: float = 0.0) -> list[str]:
    """What ranks said; the last one's machine loads for so long."""
    return launch.run(work.begin, list(jobs), [0.0] * (len(jobs) - 1) + [loads_s], workers=len(jobs))


def test_machines_whose_loading_differs_by_more_than_the_limit_start_with_the_same_shards() -> None:
    first, second = begin(JOB, JOB, loads_s=6.0)
    assert first == second
    assert len(first) == 64


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            replace(JOB, method=fullgraph.Sylvie(bits=2)),
            "different method: ranks 0, 1 have sylvie, rank 2 has sylvie --bits 2",
        ),
        (replace(JOB, method=minibatch.Salient()), "different method: ranks 0, 1 have sylvie, rank 2 has salient"),
        (
            replace(JOB, lr=0.02),
            "different option.lr: ranks 0, 1 have 0.01, rank 2 has 0.02; start all ranks with the same",
        ),
        (
            replace(JOB, seed=2),
            "different seed: ranks 0, 1 have 0, rank 2 has 2; start all ranks with the same options",
        ),
        (replace(JOB, data="synthetic:nodes=201"), "different shards: ranks 0, 1 have "),
    ],
)
def test_a_difference_names_the_ranks_and_what_differs(other: Job[Any], said: str) -> None:
    heard = begin(JOB, JOB, other)
    assert len(set(heard)) == 1, heard
    assert heard[0].startswith("Disagreement: ranks have ")
    assert said in heard[0]


def test_a_profile_counts_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.json", "two.json", "three.json")]
    for file, content in zip(files, ("{}", "{}", "{ }"), strict=True):
        file.write_text(content)
    one, two, three = (replace(JOB, profile=str(file)) for file in files)
    assert len(begin(one, two)[0]) == 64
    assert "different option.profile: rank 0 has " in begin(one, three)[0]
