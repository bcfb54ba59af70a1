"""`exact` equals one process: losses and weights after 20 epochs, whatever the layer, the parts and the directions."""

import pytest
import torch

from tests.fullgraph import work
from thinwire import launch

DATA = "synthetic:nodes=400,degree=8,classes=5,features=12,noise=2"
EPOCHS = 20


@pytest.mark.parametrize(
    ("kind", "workers", "more", "weighted"),
    [
        ("sage", 1, "", False),
        ("sage", 2, ",directed", False),
        ("sage", 4, "", False),
        ("gcn", 2, "", True),
        ("gcn", 3, ",directed", True),
        ("gin", 3, "", False),
        ("graph", 2, ",directed", True),
    ],
)
def test_shards_train_like_the_whole_graph(kind: str, workers: int, more: str, weighted: bool) -> None:
    losses, weights = work.in_one(DATA + more, kind, EPOCHS, weighted)
    assert losses[-1] < losses[0]
    results = launch.run(work.on_shards, DATA + more, kind, EPOCHS, weighted, workers=workers)
    for found in results:
        torch.testing.assert_close(found.losses, losses, rtol=1e-5, atol=1e-6)
        for name, weight in weights.items():
            torch.testing.assert_close(found.weights[name], weight, rtol=1e-4, atol=1e-5)
        # Layer 0 once, the other two every epoch, one message a peer.
        assert found.messages == (workers - 1) * (1 + 2 * EPOCHS)
