"""Weights' gradients, summed over ranks by codecs: nothing is lost, ranks stay equal, bytes are as foretold."""

import pytest
import torch
from torch import Tensor

from tests.training import work_gradients as work
from thinwire import launch
from thinwire.fullgraph import Exact, Sylvie
from thinwire.gradients import sent
from thinwire.training.job import Job

LOSSY = ("sign", "ternary", "topk:0.05", "uniform:4", "qsgd:4:128", "randomk:0.1")
DENSE = ("bfloat16", "float16")
Ranks = list[dict[str, work.Found]]


@pytest.fixture(scope="module", params=[1, 2], ids=["one group", "two groups"])
def ranks(request: pytest.FixtureRequest) -> tuple[int, Ranks]:
    codecs = ("none", *DENSE, *LOSSY)
    return request.param, launch.run(work.by_codecs, codecs, request.param, workers=3)


def came(name: str) -> Tensor:
    """What all ranks gave of this weight in all steps."""
    model = work.Given()
    return torch.stack(
        [
            model.gradient(name, step, rank)
            for step in range(work.STEPS)
            for rank in range(3)
            if name in work.reached_by(step, rank)
        ]
    ).sum(dim=0)


def applied(found: work.Found, name: str) -> Tensor:
    return torch.stack([each for step in found.applied if (each := step[name]) is not None]).sum(dim=0)


def test_in_float32_it_is_one_sum_to_the_bit() -> None:
    for ours, plain in launch.run(work.as_one_all_reduce, workers=3):
        assert all(torch.equal(one, two) for one, two in zip(ours, plain, strict=True))


@pytest.mark.parametrize("codec", [*DENSE, *LOSSY])
def test_what_is_not_applied_is_remembered(ranks: tuple[int, Ranks], codec: str) -> None:
    """For any pattern of weights that ranks reach; only where a codec remembers nothing, within its bound."""
    for name in work.SIZES:
        whole = applied(ranks[1][0][codec], name)
        kept = torch.stack([rank[codec].remembered[name] for rank in ranks[1]]).sum(dim=0)
        if codec in DENSE:
            assert not kept.any()
            bound = {"bfloat16": 2**-7, "float16": 2**-9}[codec]
            torch.testing.assert_close(whole, came(name), rtol=0, atol=bound * 5 * work.STEPS)
        else:
            torch.testing.assert_close(whole + kept, came(name), rtol=1e-4, atol=1e-4)
            assert kept.any() or name == "small"


def test_weights_that_nobody_reaches_get_no_gradient(ranks: tuple[int, Ranks]) -> None:
    for found in ranks[1][0].values():
        for step, gradients in enumerate(found.applied):
            assert [name for name, gradient in gradients.items() if gradient is None] == ["second"] * (step % 2)


def test_all_ranks_apply_the_same_bits(ranks: tuple[int, Ranks]) -> None:
    for codec, first in ranks[1][0].items():
        for other in (rank[codec] for rank in ranks[1][1:]):
            for mine, theirs in zip(first.applied, other.applied, strict=True):
                for name, gradient in mine.items():
                    assert (gradient is None) == (theirs[name] is None)
                    assert gradient is None or torch.equal(gradient, work._there(theirs[name]))


def test_the_door_counts_what_was_foretold(ranks: tuple[int, Ranks]) -> None:
    groups, by_rank = ranks
    for codec in by_rank[0]:
        for step in range(work.STEPS):
            assert sum(rank[codec].sent_bytes[step] for rank in by_rank) == work.predicted(codec, groups)
            # What float32 would have sent is the same whatever was sent instead.
            whole = sum(rank[codec].float32_bytes[step] for rank in by_rank)
            assert whole == work.predicted("none", groups)
    sizes = {codec: work.predicted(codec, groups) for codec in by_rank[0]}
    assert sizes["none"] > 1.9 * sizes["bfloat16"]
    assert sizes["bfloat16"] > 1.7 * sizes["uniform:4"]
    assert sizes["uniform:4"] > 1.5 * sizes["sign"]


@pytest.mark.parametrize("codec", ["topk:0.05", "bfloat16"])
def test_a_run_that_goes_on_goes_on_to_the_bit(codec: str) -> None:
    for pairs in launch.run(work.resumed, codec, workers=3):
        assert len(pairs) > 12
        assert all(torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("codec", ["topk:0.05", "bfloat16"])
def test_what_is_not_finite_names_the_rank_and_changes_no_memory(codec: str) -> None:
    for found in launch.run(work.broken, codec, workers=3):
        assert "weights' gradients of rank 1 have infinity or NaN in epoch 1" in found["said"]
        assert all(torch.equal(found["before"][name], found["after"][name]) for name in work.SIZES)
        assert all(bool(gradient.isfinite().all()) for gradient in found["next"])


def test_memory_stays_with_its_weight() -> None:
    for found in launch.run(work.changing, "topk:0.05", workers=3):
        assert found["before"].any()
        assert torch.equal(found["frozen"], found["before"])
        assert torch.equal(found["thawed"]["first"], found["before"])
        assert all(torch.equal(found["renamed"][name].view(size), found["thawed"][name]) for name, size in _sizes())
        assert {"inner.weights.first", "inner.weights.more"} <= found["names"]
        assert not torch.equal(found["once"], found["both"])
        assert torch.count_nonzero(found["both"]) > torch.count_nonzero(found["once"])


def _sizes() -> list[tuple[str, tuple[int, ...]]]:
    return list(work.SIZES.items())


def test_what_auto_chose_is_given_up_where_it_costs_more_than_it_saves() -> None:
    """After two windows without enough progress, on all ranks in the same step; then all that is owed is sent."""
    ranks = launch.run(work.fallen_back, 250, workers=3)
    for number, found in enumerate(ranks):
        assert found["codecs"] == ranks[0]["codecs"]
        assert found["codecs"][:40] == ["topk:0.05"] * 40
        assert found["codecs"][-1] == "none"
        assert found["owed"]
        assert not any(kept.any() for kept in found["kept"].values())
        torch.testing.assert_close(found["applied"], found["given"], rtol=1e-3, atol=1e-3)
        assert found["share"] < 0.9
        assert [record["gradients"]["codec"] for record in found["records"]] == ["none"]
        assert len(found["warned"]) == (number == 0)
    assert "falls back from topk:0.05 to none" in ranks[0]["warned"][0]


def test_a_codec_that_fits_no_optimizer_here_is_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum of its own.*give topk:RATIO"):
        Job(Sylvie(), "synthetic", gradients="dgc:0.01")
    with pytest.raises(ValueError, match="called 'none' here"):
        Job(Sylvie(), "synthetic", gradients="float32")


def test_exact_stays_exact_unless_a_codec_is_named() -> None:
    assert Job(Exact(), "synthetic").gradients_codec == "none"
    assert Job(Sylvie(), "synthetic").gradients_codec == "auto"
    assert Job(Exact(), "synthetic", gradients="sign").gradients_codec == "sign"
    assert Job(Exact(), "synthetic").identity()["gradients"] == "none"


def test_fewest_bytes_by_the_number_of_ranks() -> None:
    """In two steps a rank sends less than to all, but by one message more: at two ranks nothing is won by that.

    Nor where slices are so short that they go as they are.
    """
    kinds = {n: [message.kind for message in sent.group_messages([9_000], "sign", n, 0)] for n in (2, 3, 8, 20)}
    assert kinds == {2: ["all_gather"], 3: ["all_to_all"] * 2, 8: ["all_to_all"] * 2, 20: ["all_gather"]}
    assert sent.bytes_of([[9_000]], "sign", 1) == 0
