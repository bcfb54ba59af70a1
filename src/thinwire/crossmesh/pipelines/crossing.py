"""One edge's transfers: a micro-batch's tensor forward, its gradient back, by the plan between the two stages' layouts.

All ranks of both stages start each transfer, in the same order: ranks of the sending stage pass a tensor, others None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from thinwire.crossmesh.layout import Layout
from thinwire.crossmesh.network import Network
from thinwire.crossmesh.pipelines.edges import MESSAGE_BYTES, Edge, Kind, StageRanks
from thinwire.crossmesh.pipelines.outbox import Handle
from thinwire.crossmesh.planning import plan
from thinwire.crossmesh.run import Single, start_all
from thinwire.links import Door


@dataclass(frozen=True)
class Crossing:
    """An edge with the ranks at both ends. `label` names its channels, for example `pipeline h1 forward`.

    With `receipts` a sender waits until every receiver has all the data, not only until its own kernel has taken it.
    """

    edge: Edge
    label: str
    source: StageRanks
    destination: StageRanks
    network: Network
    door: Door
    device: torch.device | None = None  # on which this rank computes
    receipts: bool = False

    def forward(self, kind: Kind, x: Tensor | None) -> Handle:
        return self._start(self.source, self.destination, kind, x, "forward")

    def backward(self, kind: Kind, gradient: Tensor | None) -> Handle:
        return self._start(self.destination, self.source, kind, gradient, "backward")

    def announce(self, kind: Kind) -> Handle:
        """Tell the destination's ranks the tensor's kind. Only the source's first rank sends it."""
        if self.door.rank != self.source.ranks[0]:
            return All([])
        channel, message = f"pipeline {self.label} shapes", kind.to_message()
        return All([self.door.send(message, rank, channel=channel) for rank in self.destination.ranks])

    def announced(self) -> Kind:
        """The kind of the next tensor, as announced by the source."""
        channel = f"pipeline {self.label} shapes"
        return Kind.from_message(self.door.receive(MESSAGE_BYTES, self.source.ranks[0], channel=channel).wait())

    def _start(self, sender: StageRanks, receiver: StageRanks, kind: Kind, x: Tensor | None, away: str) -> Handle:
        name = f"pipeline {self.label} {away}"
        layouts = sender.layout(kind.shape), receiver.layout(kind.shape)
        handle = moved(*layouts, kind.dtype, x, network=self.network, door=self.door, name=name, device=self.device)
        if not self.receipts:
            return handle
        receipt, channel = torch.zeros(1, dtype=torch.uint8), f"{name} arrived"
        if x is not None:
            awaited = [self.door.receive(len(receipt), rank, channel=channel) for rank in receiver.ranks]
            return All([handle, *awaited])
        sends = [partial(self.door.send, receipt, rank, channel=channel) for rank in sender.ranks]
        handle.then(lambda: All([send() for send in sends]).wait())
        return handle


def crossings(
    edges: Sequence[Edge],
    stages: Sequence[StageRanks],
    network: Network,
    door: Door,
    device: torch.device | None = None,
    receipts: bool = False,
) -> dict[Edge, Crossing]:
    """The crossings of all edges. If a tensor has several destinations, its channel names include the destination."""
    names = [edge.name for edge in edges]
    by_edge = {}
    for edge in edges:
        label = f"{edge.name}>{edge.destination}" if names.count(edge.name) > 1 else edge.name
        ends = stages[edge.source], stages[edge.destination]
        by_edge[edge] = Crossing(edge, label, *ends, network, door, device, receipts)
    return by_edge


@dataclass(frozen=True)
class All:
    """Several handles, waited for together."""

    handles: list[Handle]

    def wait(self) -> None:
        for handle in self.handles:
            handle.wait()


def moved(
    source: Layout,
    destination: Layout,
    dtype: torch.dtype,
    x: Tensor | None,
    *,
    network: Network,
    door: Door,
    name: str,
    device: torch.device | None = None,
) -> Single:
    """Start moving x from layout to layout. `wait` returns this rank's tile, or None if it has none."""
    route_plan = plan(source, destination, itemsize=dtype.itemsize, network=network, name=name)
    sources = {} if x is None else {0: x}
    return Single(start_all(route_plan, sources, door, dtypes=[dtype], name=name, device=device))
