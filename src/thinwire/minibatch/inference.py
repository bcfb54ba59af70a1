"""Inference with a trained model: exact, layer by layer over the whole graph, or from sampled neighbourhoods."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.graphs import Shard
from thinwire.links import Door
from thinwire.minibatch import layers
from thinwire.minibatch.batch import Layer, Sampled
from thinwire.minibatch.loader import Loader
from thinwire.minibatch.methods import Salient
from thinwire.minibatch.topology import Array, Topology
from thinwire.training.models import Stack

CHANNEL = "inference"
# Nodes of a block, whose neighbours are fetched together: small beside a part, yet large enough to share neighbours.
BLOCK = 8192
# One layer of a model with its activation and so on: from rows of its sources to rows of its targets.
Step = Callable[[Tensor, Layer], Tensor]


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
def exact(model: Stack | Sequence[Step], shard: Shard, topology: Topology, door: Door) -> Tensor:
    """The model's output for this shard's nodes, computed with all neighbours.

    Features are fetched block by block, so that a rank never holds those of its whole halo. Before each later layer,
    each rank fetches its halo rows once, in float32. Give a model of your own as a list of its layers, in evaluation
    mode: functions of rows and a `batch.Layer`.
    """
    first, *later = _steps(model)
    method = Salient(batch=BLOCK, fanouts=(-1,), cache=0.0)
    owned = [np.arange(begin, end) for begin, end in pairwise(topology.starts)]
    blocks = Loader(shard, door, method, topology, seeds=owned, shuffled=False, channel=CHANNEL)
    x = torch.cat([first(block.x, block.layers[0]) for block in blocks])
    layer = whole_layer(shard, topology)
    for step in later:
        parts = [part.contiguous() for part in x[shard.send_rows].split(list(shard.send_to))]
        sizes = [4 * x.shape[1] * count for count in shard.halo_from]
        halo = [part.clone().view(torch.float32) for part in door.all_to_all(parts, sizes, channel=CHANNEL).wait()]
        x = step(torch.cat((x, torch.cat(halo).view(-1, x.shape[1]))), layer)
    return x


def _steps(model: Stack | Sequence[Step]) -> Sequence[Step]:
    if isinstance(model, Stack):
        model.eval()
        return [partial(layers.apply, model, number) for number in range(len(model.convs))]
    if isinstance(model, nn.Module):
        raise ValueError(
            f"exact: {type(model).__name__} is a model of your own, whose layers are not known here; give them, as a "
            "list of functions (x, layer) -> x"
        )
    return model


@torch.no_grad()
def sampled(
    model: nn.Module,
    shard: Shard,
    topology: Topology,
    door: Door,
    method: Salient,
    seeds: Sequence[Array],
    *,
    seed: int = 0,
) -> tuple[Array, Tensor]:
    """This rank's seeds, in order, and the model's output for them, from sampled neighbourhoods.

    `seeds` holds those of each rank, and is the same on all ranks. A model of your own is called with a batch's `x` and
    `layers`. Batches come through the same pipeline as in training, with a separate cache that is planned for these
    seeds and the method's fan-outs.
    """
    model.eval()
    loader = Loader(shard, door, method, topology, seed=seed, seeds=seeds, shuffled=False, channel=CHANNEL)
    forward = partial(layers.forward, model) if isinstance(model, Stack) else model
    out = [forward(batch.x, batch.layers) for batch in loader]
    return seeds[door.rank], torch.cat(out)
