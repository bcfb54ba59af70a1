"""Weights that are frozen, unfrozen, added or replaced after distribution: as in one process, or refused."""

import torch

from tests.fullgraph import work_weights
from tests.fullgraph.work import Case
from thinwire import launch

DATA = "synthetic:nodes=300,degree=6,classes=5,features=12,noise=2"


def test_weights_that_change_train_as_in_one_process() -> None:
    cases = [Case(DATA, "sage"), Case(DATA, "gcn"), Case(DATA, "gat")]
    ranks = launch.run(work_weights.on_shards, cases, workers=2)
    for number, case in enumerate(cases):
        right = work_weights.in_one(case)
        assert {"aside", "convs.0.bias" if case.kind != "sage" else "convs.0.lin_l.up.weight"} <= set(right)
        for result in (results_there[number] for results_there in ranks):
            for name, weight in right.items():
                torch.testing.assert_close(result[name], weight, rtol=1e-4, atol=1e-5, msg=f"{case.kind} {name}")


def test_what_comes_too_late_or_differs_between_ranks_is_refused() -> None:
    for said in launch.run(work_weights.refused, DATA, workers=2):
        assert "ranks want gradients of different weights: rank 0" in said["unlike"]
        assert "freeze and unfreeze alike on all" in said["unlike"]
        assert "convs.3: GATConv was added after the model was distributed" in said["late"]
