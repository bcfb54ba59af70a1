"""When a transfer is taken for stuck: not before what it queues behind has had its time."""

import time

import pytest
import torch.distributed as dist

from thinwire.links import PeerLost
from thinwire.links.heartbeat import Heartbeat, Waiting


def test_a_transfer_is_given_the_time_of_what_it_queues_behind() -> None:
    heartbeat = Heartbeat(dist.HashStore(), rank=0, ranks=[0], limit_s=1.0)
    try:
        long_ago = time.monotonic() - 20
        assert heartbeat.begins(5_000_000) == 0
        ahead = heartbeat.begins(1_000)
        assert ahead == 5_000_000
        heartbeat.check(Waiting("gradients", 1, 1_000, since_s=long_ago, ahead_bytes=ahead))
        heartbeat.ends(5_000_000)
        assert heartbeat.begins(1) == 1_000
        with pytest.raises(PeerLost, match="1000 bytes have not arrived after 20 s"):
            heartbeat.check(Waiting("gradients", 1, 1_000, since_s=long_ago))
    finally:
        heartbeat.close()
