"""`exact` equals one process: losses and weights after 20 epochs, whatever the layer, the parts and the directions."""

from dataclasses import replace

import pytest
import torch

from tests.fullgraph import work
from tests.fullgraph.work import Case
from thinwire import launch
from thinwire.codecs.kernels import twins_only
from thinwire.fullgraph import Plan

DATA = "synthetic:nodes=400,degree=8,classes=5,features=12,noise=2"
DIRECTED = DATA + ",directed"

CASES = [
    Case(DATA, "sage"),
    Case(DIRECTED, "sage"),
    Case(DIRECTED, "sage-max"),
    Case(DATA, "gcn"),
    Case(DIRECTED, "gcn", "weight"),
    Case(DIRECTED, "gcn-improved"),
    Case(DATA, "gcn-improved", "weight"),
    Case(DATA, "gcn-bare", "weight"),
    Case(DIRECTED, "gin"),
    Case(DIRECTED, "gine", "features"),
    Case(DIRECTED, "graph", "weight"),
    Case(DATA, "gat"),
    Case(DIRECTED, "gat-edges", "features"),
    Case(DIRECTED, "transformer", "features"),
    Case(DIRECTED, "own"),
]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_shards_train_like_the_whole_graph(workers: int) -> None:
    results = launch.run(work.on_shards, CASES, workers=workers)
    for number, case in enumerate(CASES):
        losses, weights = work.in_one(case)
        assert losses[-1] < losses[0], case
        for found in (each[number] for each in results):
            assert torch.allclose(found.losses, losses, rtol=1e-5, atol=1e-6), (case, found.losses, losses)
            for name, weight in weights.items():
                torch.testing.assert_close(found.weights[name], weight, rtol=1e-4, atol=1e-5)
            if case.kind in ("sage", "gat"):
                # Layer 0 once, the other two every epoch, one message a peer.
                assert found.messages == (workers - 1) * (1 + 2 * case.epochs)


def test_dropout_follows_the_nodes_wherever_they_live() -> None:
    cases = [Case(DIRECTED, "gin", "dropout"), replace(Case(DIRECTED, "gin", "dropout"), plan=Plan(seed=1))]
    alone, shared = (launch.run(work.on_shards, cases, workers=workers) for workers in (1, 3))
    for number in range(2):
        torch.testing.assert_close(shared[0][number].losses, alone[0][number].losses, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(alone[0][0].losses, alone[0][1].losses, rtol=1e-3)
    undropped, _ = work.in_one(replace(cases[0], more=""))
    assert not torch.allclose(alone[0][0].losses, undropped, rtol=1e-3)


def test_what_cannot_be_distributed_is_refused_by_name() -> None:
    said = launch.run(work.refused, DATA, workers=1)[0]
    assert "conv: TAGConv takes one set of nodes only" in said["hops"]
    assert "conv: TwoHops gives other rows on a part" in said["own"]
    assert "1: GraphNorm looks at all nodes at once" in said["norm"]
    assert "Linear has no PyG message passing layer" in said["none"]
    assert "give layers their in_channels" in said["lazy"]
    assert "conv: these are not the shard's edges" in said["edges"]
    assert "conv: GCNConv with learned edge weights" in said["weights"]
    assert "conv: x is (399, 12); give one row for each of this shard's 400 nodes" in said["rows"]


def test_dropout_kernel_is_its_twin() -> None:
    from thinwire.fullgraph.dropout import _drop

    x = torch.randn(301, 37)
    ids = torch.randint(0, 2**40, (301,))
    native = _drop(x, ids, 0.7, 5)
    with twins_only():
        assert torch.equal(native, _drop(x, ids, 0.7, 5))
    share = float((native != 0).float().mean())
    assert abs(share - 0.7) < 0.02
    torch.testing.assert_close(native[native != 0], (x / 0.7)[native != 0])
    order = torch.randperm(301)
    assert torch.equal(_drop(x[order], ids[order], 0.7, 5), native[order])
