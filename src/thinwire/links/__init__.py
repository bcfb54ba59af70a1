"""The wires; knows no models."""

from thinwire.links.books import Books, ChannelBook
from thinwire.links.exchange import Door
from thinwire.links.heartbeat import PeerLost
from thinwire.links.transfer import Transfer

__all__ = ["Books", "ChannelBook", "Door", "PeerLost", "Transfer"]
