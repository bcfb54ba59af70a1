"""The wires; knows no models."""

from thinwire.links.books import Books, ChannelBook
from thinwire.links.exchange import Door, Transfer
from thinwire.links.pulse import PeerLost

__all__ = ["Books", "ChannelBook", "Door", "PeerLost", "Transfer"]
