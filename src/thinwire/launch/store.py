"""The store that ranks meet at. The launcher serves it, so that it outlives any rank."""

import socket
from datetime import timedelta

import torch.distributed as dist

LOOPBACK = "127.0.0.1"
STORE_LIMIT_S = 60.0


def serve_store(address: str) -> tuple[dist.TCPStore, int]:
    """A store that listens on `address` alone (torch's own choice would be all addresses), and its port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        address,
        port,
        world_size=None,
        is_master=True,
        timeout=timedelta(seconds=STORE_LIMIT_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port
