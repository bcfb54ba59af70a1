"""Measure the wires through the door: every ordered pair, every collective, then fit the cost model; check it on draws.

Every rank calls these functions alike and gets the same answer: times are gathered, and fitting is a pure function.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thinwire.links.cost import KINDS, STRAIGHT, CostModel, Link, fit_hinge
from thinwire.links.exchange import Door
from thinwire.links.payload import Payload

SIZES = (1_000, 10_000, 60_000, 250_000, 1_000_000, 4_000_000)
COLLECTIVE_SIZES = (1_000, 10_000, 25_000, 60_000, 120_000, 250_000, 1_000_000)
# A payload is measured in bursts, all payloads in turn and then again: a machine has good and bad seconds, and each
# payload gets its share of both. No more bursts for one that has taken its time. Quick collectives get twice as many:
# where threads wait for a core, the same few kilobytes take 1 ms in one burst and 4 ms in the next.
PASSES = 10
BURST = 4
PATIENCE_S = 0.08
QUICK_S = 0.01

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class CheckRow:
    """A payload that the model was not fitted to: what the model says it takes, and what it took."""

    collective: str
    bytes: int  # sent by the rank that sends the most
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return abs(self.predicted_s - self.measured_s) / self.measured_s


def probe(
    door: Door, *, draws: int = 0, seed: int = 0, on_progress: Progress = lambda share, what: None
) -> tuple[CostModel, list[CheckRow]]:
    """The fitted model of this group's wires, and how it does on random payloads that it was not fitted to.

    They are measured among the others, so that a machine which changes its pace does so for both.
    """
    n = door.world_size
    pairs = [(src, dst) for src in range(n) for dst in range(n) if src != dst]
    messages = [Payload.message(size, src, dst, n) for src, dst in pairs for size in SIZES]
    collectives = _collectives(n) if n > 1 else []
    randomness = random.Random(seed)
    drawn = [Payload.draw(randomness, n) for _ in range(draws)]
    least = dict.fromkeys(messages, 1) | dict.fromkeys(collectives, 2) | dict.fromkeys(drawn, 3)
    seconds = measure(door, least, on_progress=on_progress)
    links = {}
    for pair in pairs:
        links[pair] = _fit_link(*pair, [seconds[Payload.message(size, *pair, n)] for size in SIZES])
    bare = CostModel(n, links, dict.fromkeys(KINDS, STRAIGHT))
    hinges = {}
    for kind in KINDS:
        of_kind = [payload for payload in collectives if payload.kind == kind]
        on_links = [payload.predict(bare) for payload in of_kind]
        hinges[kind] = fit_hinge(on_links, [seconds[payload] for payload in of_kind]) if of_kind else STRAIGHT
    model = CostModel(n, links, hinges)
    rows = [
        CheckRow(payload.kind, payload.bytes_of_busiest(), payload.predict(model), seconds[payload])
        for payload in drawn
    ]
    return model, rows


def _collectives(n: int) -> list[Payload]:
    even = [Payload.even(kind, size, n) for kind in KINDS for size in COLLECTIVE_SIZES]
    # Uneven ones too: an exchange that fills every link both ways gets a little less of each.
    uneven = [Payload.uneven("all_to_all", size, n, random.Random(size)) for size in COLLECTIVE_SIZES]
    return [*even, Payload.even("all_to_all", SIZES[-1], n), *uneven]


def measure(
    door: Door, least: Mapping[Payload, int], *, on_progress: Progress = lambda share, what: None
) -> dict[Payload, float]:
    """Seconds of each payload, the mean of the middle half of its times. It is sent at least `least[payload]` times."""
    payloads = list(least)
    # In mixed order: a small message after a large exchange is slower than after its like.
    order = random.Random(0).sample(payloads, len(payloads))
    taken: dict[Payload, list[float]] = {payload: [] for payload in payloads}
    for number, payload in enumerate(order * (2 * PASSES)):
        on_progress(number / (2 * PASSES * len(order)), payload.kind)
        times = taken[payload]
        quick = payload.kind != "send" and sum(times) < QUICK_S * len(times)
        if number >= PASSES * len(order) and not quick:
            continue
        if len(times) < least[payload] or sum(times) < PATIENCE_S * (1 + quick):
            # The first burst is a single one: it shows how long the others will take.
            burst = min(BURST, int(PATIENCE_S / times[-1])) if times else 1
            times += payload.seconds(door, max(1, burst))
    return {payload: _midmean(times) for payload, times in taken.items()}


def _midmean(values: Sequence[float]) -> float:
    """Like the median it ignores outliers, and it is steady where times come in two kinds. Of two times the faster."""
    ordered = sorted(values)
    if len(ordered) == 2:
        return ordered[0]
    cut = (len(ordered) + 1) // 4
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


def _fit_link(src: int, dst: int, times: Sequence[float]) -> Link:
    hinge = fit_hinge(SIZES, times)
    return Link(src, dst, max(hinge.floor_s, hinge.fixed_s, 0.0), hinge.fixed_s, 1 / max(hinge.slope, 1e-15))
