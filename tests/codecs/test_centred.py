"""`Centred`: what rows have in common reaches all of them, also those that a budget leaves out."""

import pytest
import torch

from tests.codecs.every import normal
from thinwire.codecs import Budget, Centred, Nearest


@pytest.mark.parametrize("codec", [Budget(0.05), Nearest(1)], ids=str)
def test_a_common_drift_reaches_every_row(codec: Budget | Nearest) -> None:
    drift = normal(1, 64)
    x = drift + 0.01 * normal(300, 64, seed=1)
    decoded = Centred(codec).decode(Centred(codec).encode(x), x.shape)
    alone = codec.decode(codec.encode(x), x.shape)
    assert (decoded - x).norm() < 0.02 * x.norm() < 0.3 * (alone - x).norm()


def test_rows_without_a_common_part_lose_nothing_by_it() -> None:
    x = normal(300, 64)
    for codec in (Budget(0.5), Nearest(1)):
        decoded = Centred(codec).decode(Centred(codec).encode(x), x.shape)
        alone = codec.decode(codec.encode(x), x.shape)
        assert (decoded - x).norm() < 1.01 * (alone - x).norm()


def test_weights_and_urgency_go_to_the_budget() -> None:
    x, codec = normal(200, 32), Centred(Budget(0.2))
    must = torch.zeros(200, dtype=torch.int32)
    must[7] = 1
    weights = torch.ones(200)
    weights[100:] = 0
    sent = codec.sent(codec.encode_rows(x, weights=weights, must=must), x.shape)
    assert sent[7] > 0
    assert sent[:100].any()
    assert not sent[100:].any()
    assert codec.chooses_rows
    assert not Centred(Nearest(1)).chooses_rows


def test_no_rows_take_no_bytes() -> None:
    for codec in (Centred(Budget(0.2)), Centred(Nearest(1))):
        empty = torch.empty(0, 16)
        assert codec.nbytes(empty.shape) == len(codec.encode(empty)) == 0
    assert len(Centred(Budget(0.2)).encode_rows(torch.empty(0, 16))) == 0
