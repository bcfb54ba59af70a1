"""What a trained model says: exactly, layer by layer over the whole graph; or from sampled neighbourhoods."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.graphs import Shard
from thinwire.links import Door
from thinwire.minibatch import layers
from thinwire.minibatch.batch import Layer, Sampled
from thinwire.minibatch.loader import Loader
from thinwire.minibatch.plan import Plan
from thinwire.minibatch.topology import Array, Topology
from thinwire.training.models import Stack

CHANNEL = "inference"


def whole_layer(shard: Shard, topology: Topology) -> Layer:
    """A layer over all of a shard's nodes, with all of their neighbours: sources are owned nodes, then halo nodes."""
    device = shard.indices.device
    none = torch.zeros(0, dtype=torch.int32, device=device)
    owned = torch.arange(shard.start, shard.start + shard.num_owned, device=device)
    first = int(topology.indptr[shard.start])
    sampled = Sampled(
        nodes=torch.cat((owned, shard.halo_ids)),
        num_nodes=(shard.num_owned, shard.num_owned + shard.num_halo),
        indptr=shard.indptr.int(),
        columns=shard.indices,
        edges=torch.arange(first, first + len(shard.indices), device=device),
        column_ptr=none,
        rows=none,
        row_edges=none,
        own_at=none,
        own_rows=none,
        cached_at=none,
        cached_rows=none,
        wanted_at=none,
        wanted_rows=none,
        wanted_from=(),
    )
    return Layer(sampled, topology, 0)


@torch.no_grad()
def exact(model: Stack, shard: Shard, topology: Topology, door: Door) -> Tensor:
    """Of this shard's nodes. Before each layer every rank fetches its halo's rows once, in float32."""
    model.eval()
    layer = whole_layer(shard, topology)
    x = shard.x.float()
    for number in range(len(model.convs)):
        parts = [part.contiguous() for part in x[shard.send_rows].split(list(shard.send_to))]
        sizes = [4 * x.shape[1] * count for count in shard.halo_from]
        halo = [part.clone().view(torch.float32) for part in door.all_to_all(parts, sizes, channel=CHANNEL).wait()]
        x = layers.apply(model, number, torch.cat((x, torch.cat(halo).view(-1, x.shape[1]))), layer)
    return x


@torch.no_grad()
def sampled(
    model: Stack, shard: Shard, topology: Topology, door: Door, plan: Plan, seeds: Sequence[Array]
) -> tuple[Array, Tensor]:
    """Of `seeds`, which every rank knows of every rank: this rank's own, in order, and what the model says of them.

    Through the pipeline of training, with a cache of its own, planned for these vertices and the plan's fan-outs.
    """
    model.eval()
    loader = Loader(shard, door, plan, topology, seeds=seeds, shuffled=False, channel=CHANNEL)
    out = [layers.forward(model, batch.x, batch.layers) for batch in loader]
    return seeds[door.rank], torch.cat(out)
