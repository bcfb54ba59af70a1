"""A cost model of wires that were not measured: the same rate between all hosts. Pure."""

from thinwire.links.cost import KINDS, CostModel, Hinge, Link

# The share of a link's rate that carries payload: 1448 of the 1538 bytes of a full Ethernet frame.
PAYLOAD = 1448 / 1538
# Seconds of a small message between two hosts on a switch, through TCP and gloo.
MESSAGE_S = 0.0003
# The rates of the chart, in bits per second.
RATES = {
    "10mbit": 1e7,
    "30mbit": 3e7,
    "100mbit": 1e8,
    "300mbit": 3e8,
    "1gbit": 1e9,
    "3gbit": 3e9,
    "10gbit": 1e10,
    "30gbit": 3e10,
    "100gbit": 1e11,
}


def even(world_size: int, bits_per_s: float, message_s: float = MESSAGE_S) -> CostModel:
    """Wires on which each host sends and receives at this rate."""
    rate = bits_per_s / 8 * PAYLOAD
    links = {
        (src, dst): Link(src, dst, message_s, message_s, rate)
        for src in range(world_size)
        for dst in range(world_size)
        if src != dst
    }
    # Rounds of messages, one after the other. A ring's all-reduce has two halves.
    rounds = {"all_to_all": 1, "all_gather": world_size - 1, "all_reduce": 2 * (world_size - 1), "broadcast": 1}
    fixed = {kind: rounds[kind] * message_s for kind in KINDS}
    return CostModel(world_size, links, {kind: Hinge(fixed[kind], fixed[kind], 1.0) for kind in KINDS})
