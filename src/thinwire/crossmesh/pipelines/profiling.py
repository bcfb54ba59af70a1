"""Measure how long a pipeline's stages and edges take, on the pipeline itself, for the simulator and the planners."""

import statistics
import time
from collections.abc import Sequence

import torch

from thinwire.crossmesh.pipelines.crossing import Crossing
from thinwire.crossmesh.pipelines.edges import Kind
from thinwire.crossmesh.pipelines.run import Pipeline
from thinwire.crossmesh.pipelines.schedule import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT
from thinwire.crossmesh.pipelines.simulator import Costs, StageCost, WireCost
from thinwire.links import Door

CHANNEL = "pipeline profile"
PROBES = 5


def profile(pipes: Sequence[Pipeline], door: Door, *, hosts: Sequence[int] = ()) -> Costs:
    """Every rank calls this, after each pipeline has done two steps or more. All have the same stages and edges.

    Stage times are medians over the last step of each pipeline. One with split backward and one without measure all
    kinds of actions; with only one of them, B is taken as I and W together, or I and W as half of B each. Each edge is
    timed in both directions, with nothing else under way. hosts[i] is stage i's host, if stages share network cards.
    """
    first = pipes[0]
    spans = [span for pipe in pipes for span in pipe.spans if not span.wire]
    times_by_kind = [[span.end_s - span.start_s for span in spans if span.kind == kind] for kind in KINDS]
    facts = [
        first.stage,
        first.activation_bytes,
        *(statistics.median(times) if times else 0.0 for times in times_by_kind),
    ]
    gathered = door.gather(torch.tensor(facts, dtype=torch.float64), channel=CHANNEL).tolist()
    stages = [
        _stage_cost([row[1:] for row in gathered if row[0] == stage]) for stage in range(first.schedule.num_stages)
    ]
    wires = []
    for edge in first.edges:
        kind = first.kind(edge) if edge in first.own_edges else None
        forward_s, backward_s = (
            _probed(first.crossing(edge), kind, door, forward=forward) for forward in (True, False)
        )
        wires.append(WireCost(edge.name, edge.source, edge.destination, forward_s, backward_s))
    return Costs(tuple(stages), tuple(wires), tuple(hosts))


def _stage_cost(rows: Sequence[Sequence[float]]) -> StageCost:
    """A stage's cost: for each figure, the largest of its ranks."""
    size, *times = (max(column) for column in zip(*rows, strict=True))
    seconds = dict(zip(KINDS, times, strict=True))
    backward_s = seconds[BACKWARD] or seconds[INPUT] + seconds[WEIGHT]
    input_s = seconds[INPUT] or backward_s / 2
    return StageCost(seconds[FORWARD], backward_s, input_s, seconds[WEIGHT] or backward_s / 2, int(size))


def _probed(crossing: Crossing, kind: Kind | None, door: Door, *, forward: bool) -> float:
    """Median seconds until the last receiver has the tensor, equal on all ranks. Only the edge's ranks know `kind`."""
    sender, receiver = crossing.source, crossing.destination
    if not forward:
        sender, receiver = receiver, sender
    taken = []
    for _ in range(PROBES):
        door.barrier(channel=CHANNEL)  # all begin together
        begun_s = time.perf_counter()
        if kind is not None:
            x = None
            if door.rank in sender.ranks:
                rows = sender.rows(kind.shape[0], door.rank) if kind.shape else slice(0, 0)
                shape = (rows.stop - rows.start, *kind.shape[1:]) if kind.shape else ()
                x = torch.zeros(shape, dtype=kind.dtype, device=crossing.device)
            (crossing.forward if forward else crossing.backward)(kind, x).wait()
        taken.append(time.perf_counter() - begun_s)
    gathered = door.gather(torch.tensor([statistics.median(taken)], dtype=torch.float64), channel=CHANNEL)
    return max(float(gathered[rank]) for rank in receiver.ranks)
