"""Boundary-node sampling: exact at 1, unbiased below, gradients of what was computed, exact where it is evaluated."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.fullgraph import work
from tests.fullgraph.work import Case
from thinwire import launch
from thinwire.codecs import Identity, seed_from
from thinwire.fullgraph import BoundarySampling, Exact
from thinwire.fullgraph.clock import DRAW
from thinwire.fullgraph.methods.boundary_sampling import DrawnRows

DATA = "synthetic:nodes=600,degree=10,classes=4,features=12,noise=2,label_noise=0"
SEED, RANKS = 3, 3


def test_all_rows_are_exact_to_the_bit() -> None:
    methods = (Exact(), BoundarySampling(share=1.0))
    cases = [Case(DATA, kind, epochs=6, method=method, lr=0.1) for kind in ("sage", "gat") for method in methods]
    for results in launch.run(work.on_shards, cases, workers=2):
        for exact, sampled in (results[:2], results[2:]):
            assert torch.equal(sampled.losses, exact.losses)
            assert torch.equal(sampled.logits, exact.logits)
            assert sampled.bytes_to == exact.bytes_to


def test_a_share_of_the_rows_crosses_and_the_same_ones_return() -> None:
    share, epochs = 0.3, 40
    case = Case(DATA, "sage", epochs=epochs, method=BoundarySampling(share=share), lr=0.1)
    ranks = [results[0] for results in launch.run(work.on_shards, [case], workers=RANKS)]
    width = 16  # into the second layer

    def rows(channel: str) -> int:
        return sum(result.bytes_to[channel] for result in ranks) // (4 * width)

    assert rows("convs.1.forward") == rows("convs.1.backward")
    assert rows("convs.1.forward") == pytest.approx(
        share * epochs * sum(result.send_rows for result in ranks), rel=0.05
    )
    # Features cross once, all of them.
    assert all(result.bytes_to["convs.0.exact"] == 4 * 12 * result.send_rows for result in ranks)
    assert ranks[0].losses[-1] < 0.7 * ranks[0].losses[0]


def test_what_is_received_is_right_in_the_mean() -> None:
    """And so is every sum of it, as a layer's aggregate is."""
    method, rows_ND = BoundarySampling(share=0.25), torch.randn(40, 8)
    sums_MN = torch.rand(5, 40)
    total, draws = torch.zeros(5, 8), 4000
    for seed in range(draws):
        codec = method.draw(40, seed)
        data = codec.encode(rows_ND)
        assert len(data) == codec.nbytes(rows_ND.shape)
        total += sums_MN @ codec.decode(data, rows_ND.shape)
    # A row of weight w adds w x (drawn / p): the variance of the mean is known.
    deviation = ((sums_MN.square() @ rows_ND.square()) * (1 / 0.25 - 1) / draws).sqrt()
    assert ((total / draws - sums_MN @ rows_ND).abs() < 5 * deviation).all()


def test_gradients_are_those_of_the_sampled_forward() -> None:
    share = 0.4
    ranks = launch.run(work.passes_of, DATA, BoundarySampling(share=share), SEED, workers=RANKS)
    for epoch in range(2):
        loss, gradients = in_one_process(share, epoch)
        torch.testing.assert_close(sum(passes[epoch][0] for passes in ranks), loss, rtol=1e-4, atol=1e-5)
        for passes in ranks:
            for name, gradient in gradients.items():
                torch.testing.assert_close(passes[epoch][1][name], gradient, rtol=1e-3, atol=1e-4)
    assert not torch.equal(ranks[0][0][0], ranks[0][1][0])  # every epoch draws anew


def in_one_process(share: float, epoch: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the whole graph, its cut edges weighed by what both ends draw."""
    case = Case(DATA, "graph")
    shards = [work.shard_of(case, rank, RANKS)[0] for rank in range(RANKS)]
    graph = work.load(case)
    part_of = torch.zeros(graph.num_nodes, dtype=torch.long)
    counts_for = torch.zeros(graph.num_nodes, RANKS)  # what a node's row counts for, by who reads it
    for owner, shard in enumerate(shards):
        part_of[shard.original_ids] = owner
        counts_for[shard.original_ids, owner] = 1.0
        for reader, rows in enumerate(shard.send_rows.split(list(shard.send_to))):
            drawn = BoundarySampling(share).draw(len(rows), seed_from(SEED, epoch, owner, DRAW, reader)).drawn
            counts_for[shard.original_ids[rows[drawn]], reader] = 1 / share
    edge_index = torch.from_numpy(graph.edge_index).long()
    weights = counts_for[edge_index[0], part_of[edge_index[1]]]
    net = work.build(case, graph.x.shape[1], graph.num_classes)
    x, y, used = torch.from_numpy(graph.x).float(), torch.from_numpy(graph.y).long(), torch.from_numpy(graph.split == 0)
    for place, conv in enumerate(net.convs):  # type: ignore[arg-type]
        x = conv(x if place == 0 else x.relu(), edge_index, weights if place else None)
    loss = functional.cross_entropy(x[used], y[used], reduction="sum") / used.sum()
    loss.backward()
    return loss.detach(), {name: value.grad for name, value in net.named_parameters() if value.grad is not None}


def test_evaluation_is_exact() -> None:
    case = Case(DATA, "sage", epochs=4, method=BoundarySampling(share=0.2), lr=0.1)
    graph = work.load(case)
    edge_index = torch.from_numpy(graph.edge_index).long()
    for (result,) in launch.run(work.on_shards, [case], workers=2):
        whole = work.build(case, graph.x.shape[1], graph.num_classes).eval()
        whole.load_state_dict(result.weights)
        out = whole(torch.from_numpy(graph.x).float(), edge_index)
        torch.testing.assert_close(result.logits, out[result.nodes].detach(), rtol=1e-4, atol=1e-4)


def test_both_ends_draw_the_same_and_every_epoch_another() -> None:
    method = BoundarySampling(share=0.5)
    one, same, other = (method.draw(200, seed) for seed in (7, 7, 8))
    assert torch.equal(one.drawn, same.drawn)
    assert not torch.equal(one.drawn, other.drawn)
    assert method.message_bytes(200, 8) == Identity().nbytes((200, 8)) // 2


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_edges_of_a_draw(rows: int) -> None:
    x_ND = torch.randn(rows, 5)
    for drawn in (torch.ones(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.bool)):
        codec = DrawnRows(drawn, 2.0)
        torch.testing.assert_close(codec.decode(codec.encode(x_ND), x_ND.shape), 2.0 * x_ND * drawn[:, None])
    with pytest.raises(ValueError, match="give as many as were drawn from"):
        codec.nbytes((rows + 1, 5))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_what_is_no_share(share: float) -> None:
    with pytest.raises(ValueError, match="give more than 0"):
        BoundarySampling(share)
