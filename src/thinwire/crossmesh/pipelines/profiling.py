"""What a pipeline's stages and edges take here: measured on the pipeline itself, for the simulator and its planners."""

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
    """Every rank calls this after each of these pipelines, over the same stages and edges, has done two steps or more.

    Stage times are medians over the last step of each, so that one with split backward and one without give all kinds;
    where only one is there, B counts as I and W together, or as twice either. Each edge is timed both ways, alone.
    hosts[i] is stage i's host, where stages meet at a network card.
    """
    first = pipes[0]
    spans = [span for pipe in pipes for span in pipe.spans if not span.wire]
    own = [[span.end_s - span.start_s for span in spans if span.kind == kind] for kind in KINDS]
    facts = [first.stage, first.activation_bytes, *(statistics.median(each) if each else 0.0 for each in own)]
    gathered = door.gather(torch.tensor(facts, dtype=torch.float64), channel=CHANNEL).tolist()
    stages = [
        _stage_cost([row[1:] for row in gathered if row[0] == stage]) for stage in range(first.schedule.num_stages)
    ]
    wires = []
    for edge in first.edges:
        kind = first.kind(edge) if edge in first.own_edges else None
        forward_s, backward_s = (_probed(first.crossing(edge), kind, door, forward=way) for way in (True, False))
        wires.append(WireCost(edge.name, edge.source, edge.destination, forward_s, backward_s))
    return Costs(tuple(stages), tuple(wires), tuple(hosts))


def _stage_cost(rows: Sequence[Sequence[float]]) -> StageCost:
    """The slowest of a stage's ranks decides."""
    size, *times = (max(column) for column in zip(*rows, strict=True))
    seconds = dict(zip(KINDS, times, strict=True))
    backward_s = seconds[BACKWARD] or seconds[INPUT] + seconds[WEIGHT]
    input_s = seconds[INPUT] or backward_s / 2
    return StageCost(seconds[FORWARD], backward_s, input_s, seconds[WEIGHT] or backward_s / 2, int(size))


def _probed(crossing: Crossing, kind: Kind | None, door: Door, *, forward: bool) -> float:
    """Seconds until the last receiver has it, the median of a few, known to all. `kind` where the edge is ours."""
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
