"""A first look at the wires, in a second or two: a rate for every ordered pair. `probe` measures all there is.

Pairs of a round go side by side, as they do in an exchange. Every rank gets the same answer.
"""

import statistics
from collections.abc import Mapping

import torch

from thinwire.links.cost import KINDS, CostModel, Hinge, Link
from thinwire.links.exchange import Door

CHANNEL = "quick probe"
# Sizes grow fourfold until the fastest pair of a round takes long enough to tell, or the slowest one too long.
FIRST_BYTES = 64 << 10
LAST_BYTES = 16 << 20
ENOUGH_S = 0.05
PATIENCE_S = 0.3
REPEATS = 3


def quick_probe(door: Door, device: torch.device) -> CostModel:
    """A rough model of the wires, for messages that start and end on this device."""
    n = door.world_size
    floor_s = door.gather(_small_exchange_s(door, device), channel=CHANNEL).max().item() if n > 1 else 0.0
    links = {}
    for distance in range(1, n):
        pairs = {src: (src + distance) % n for src in range(n)}
        rates = rates_into(door, pairs, device)
        for src, dst in pairs.items():
            links[src, dst] = Link(src, dst, floor_s / (n - 1), 0.0, rates[dst])
    hinge = Hinge(floor_s, 0.0, 1.0)
    return CostModel(n, links, dict.fromkeys(KINDS, hinge))


def rates_into(door: Door, pairs: Mapping[int, int], device: torch.device) -> dict[int, float]:
    """Bytes a second into each receiver, with all pairs (sender to receiver) side by side. Every rank calls this.

    From the times of two sizes, so that what every message takes, however small, drops out.
    """
    size, before = FIRST_BYTES, _round_s(door, pairs, device, FIRST_BYTES // 4)
    while True:
        taken = _round_s(door, pairs, device, size)
        if taken.min() >= ENOUGH_S or taken.max() >= PATIENCE_S or size >= LAST_BYTES:
            break
        size, before = 4 * size, taken
    grown = (taken - before).clamp(min=0.5 * taken)  # so that a disturbed time does not look endlessly fast
    return {dst: float(0.75 * size / seconds) for dst, seconds in zip(pairs.values(), grown, strict=True)}


def _round_s(door: Door, pairs: Mapping[int, int], device: torch.device, size: int) -> torch.Tensor:
    """Seconds of each receiver's message, the quickest of a few: whatever disturbs makes it longer."""
    target = pairs.get(door.rank)
    source = next((src for src, dst in pairs.items() if dst == door.rank), None)
    seconds = []
    for _ in range(REPEATS):
        door.barrier(channel=CHANNEL)  # all begin together
        received = None if source is None else door.receive(size, source, channel=CHANNEL, device=device)
        sent = None
        if target is not None:
            sent = door.send(torch.zeros(size, dtype=torch.uint8, device=device), target, channel=CHANNEL)
        if received is not None:
            received.wait()
            seconds.append(received.seconds)
        if sent is not None:
            sent.wait()
    return door.gather(min(seconds, default=0.0), channel=CHANNEL)[list(pairs.values())]


def _small_exchange_s(door: Door, device: torch.device) -> float:
    taken = []
    for _ in range(REPEATS):
        parts = [torch.zeros(64, dtype=torch.uint8, device=device) for _ in range(door.world_size)]
        transfer = door.all_to_all(parts, [64] * door.world_size, channel=CHANNEL)
        transfer.wait()
        taken.append(transfer.seconds)
    return statistics.median(taken)
