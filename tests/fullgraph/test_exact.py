"""`exact` equals one process: losses and weights after 20 epochs, whatever the layer, the parts and the directions."""

from dataclasses import replace

import pytest
import torch

from tests.fullgraph import work
from tests.fullgraph.work import Case
from thinwire import launch
from thinwire.codecs.kernels import twins_only

DATA = "synthetic:nodes=400,degree=8,classes=5,features=12,noise=2"
DIRECTED = DATA + ",directed"
SMALL = "synthetic:nodes=100,degree=6,classes=5,features=12,noise=2,directed"

CASES = [
    Case(DATA, "sage"),
    Case(DIRECTED, "sage"),
    Case(DIRECTED, "sage-max"),
    Case(DATA, "gcn"),
    Case(DIRECTED, "gcn", ("weight", "loops")),
    Case(DIRECTED, "gcn-improved"),
    Case(DATA, "gcn-improved", ("weight",)),
    Case(DATA, "gcn-bare", ("weight",)),
    Case(DATA, "gin"),
    Case(DIRECTED, "gin"),
    Case(DATA, "gin-mean"),
    Case(DATA, "gen"),
    Case(DIRECTED, "gine", ("features",)),
    Case(DIRECTED, "graph", ("weight",)),
    Case(DATA, "gat", ("apart",)),
    Case(DIRECTED, "gat"),
    Case(DIRECTED, "nn", ("features",)),
    Case(DIRECTED, "gat-edges", ("features", "loops")),
    Case(DIRECTED, "transformer", ("features",)),
    Case(DIRECTED, "own"),
]


def apart(computed: torch.Tensor, right: torch.Tensor) -> float:
    """Relative to all of it: a single value may be next to nothing."""
    return float((computed - right).float().norm() / right.float().norm().clamp(min=1e-3))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_shards_train_like_the_whole_graph(workers: int) -> None:
    results = launch.run(work.on_shards, CASES, workers=workers)
    for number, case in enumerate(CASES):
        losses, weights, logits = work.in_one(case)
        start = work.build(case, 12, 5).state_dict()
        assert losses[-1] < losses[0], case
        for result in (results_there[number] for results_there in results):
            assert torch.allclose(result.losses, losses, rtol=1e-5, atol=1e-6), (case, result.losses, losses)
            for name, weight in weights.items():
                assert apart(result.weights[name], weight) < 1e-5, (case, name)
            moved = [float((weight - start[name]).float().norm()) for name, weight in weights.items()]
            assert sum(moved) > 0.01, case
            assert apart(result.logits, logits[result.nodes]) < 1e-5, case
            if case.kind in ("sage", "gat"):
                # Layer 0 once, the other two every epoch, one message a peer.
                assert result.messages == (workers - 1) * (1 + 2 * case.epochs)


def test_layers_that_read_neighbours_in_turn_read_the_same_sequences() -> None:
    cases = [Case(SMALL, "sage-lstm", ("sorted",), epochs=3), Case(SMALL, "gine-gru", ("sorted", "features"), epochs=3)]
    for workers in (1, 3):
        for results_there in launch.run(work.on_shards, cases, workers=workers):
            for case, result in zip(cases, results_there, strict=True):
                losses, weights, logits = work.in_one(case)
                torch.testing.assert_close(result.losses, losses, rtol=1e-5, atol=1e-6)
                assert apart(result.logits, logits[result.nodes]) < 1e-5, case
                assert max(apart(result.weights[name], weight) for name, weight in weights.items()) < 1e-4, case


def test_dropout_follows_the_nodes_wherever_they_live() -> None:
    cases = [Case(DIRECTED, "gin", ("dropout",)), Case(DIRECTED, "gin", ("dropout",), seed=1)]
    alone, shared = (launch.run(work.on_shards, cases, workers=workers) for workers in (1, 3))
    for number in range(2):
        torch.testing.assert_close(shared[0][number].losses, alone[0][number].losses, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(alone[0][0].losses, alone[0][1].losses, rtol=1e-3)
    undropped = work.in_one(replace(cases[0], more=())).losses
    assert not torch.allclose(alone[0][0].losses, undropped, rtol=1e-3)


def test_what_cannot_be_distributed_is_refused_by_name() -> None:
    said = launch.run(work.refused, DATA, workers=1)[0]
    assert "conv: TAGConv takes one set of nodes only" in said["hops"]
    assert "conv: TwoHops gives other rows on a part" in said["own"]
    assert "conv: SAGEConv(flow='target_to_source'); give 'source_to_target'" in said["flow"]
    assert "conv: GCNConv takes one set of nodes only" in said["aggr"]
    assert "conv: x is torch.float16; give float32" in said["half"]
    assert "conv: called by itself; call the model that was distributed" in said["itself"]
    assert "this Bad is distributed already" in said["twice"]
    assert "1: GraphNorm looks at all nodes at once" in said["norm"]
    assert "pools.0: TopKPooling chooses among all nodes" in said["pooling"]
    assert "Linear has no PyG message passing layer" in said["none"]
    assert "conv: Small does not work on (x_src, x_dst): IndexError: that is more than six" in said["later"]
    assert "give layers their in_channels" in said["lazy"]
    assert "conv: these are not the shard's edges" in said["edges"]
    assert "conv: GCNConv with learned edge weights" in said["weights"]
    assert "conv: x is (399, 12); give one row for each of this shard's 400 nodes" in said["rows"]


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_rows_that_need_nobody_are_computed_while_messages_travel(kind: str) -> None:
    for happened in launch.run(work.order_of_events, Case(DATA, kind), workers=2):
        for way, what in (("forward", "own rows"), ("backward", "own rows back")):
            for layer in ("convs.1", "convs.2"):
                post, finish = (happened.index(f"{act} {layer}.{way}") for act in ("post", "finish"))
                assert what in happened[post:finish], (layer, way, happened)


def test_what_is_not_finite_is_named_by_layer_rank_and_epoch() -> None:
    with pytest.raises(launch.RankFailed, match=r"convs\.1\.forward: rank 1's message can't be sent in epoch 3"):
        launch.run(work.poisoned, Case(DATA, "sage"), workers=2)


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


def test_gradients_add_up_over_passes_and_are_exact_in_evaluation() -> None:
    alone, shared = (launch.run(work.gradients, DATA, workers=workers) for workers in (1, 2))
    for outputs in shared:
        torch.testing.assert_close(outputs["eval"], alone[0]["eval"], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(outputs["once"], alone[0]["once"], rtol=1e-4, atol=1e-6)  # 8 bits a value
        torch.testing.assert_close(outputs["twice"], 2 * outputs["once"])
        assert len(outputs["once"]) == len(alone[0]["once"])


def test_other_edge_weights_make_other_sums() -> None:
    for rows, right in launch.run(work.weights_that_change, DIRECTED, workers=2):
        torch.testing.assert_close(rows, right, rtol=1e-4, atol=1e-4)
