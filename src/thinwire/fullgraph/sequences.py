"""Aggregations that read neighbours one after the other (LSTM, GRU): the same sequences at any number of ranks.

PyG gives them each node's edges in their order, followed by zeros up to the most neighbours that any node has. On a
shard that order is by the sources' numbers in the whole graph, as PyG's `sort_edge_index(..., sort_by_row=False)` has
it, and the most is that of all ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, aggr

from thinwire.fullgraph.halo import Halo
from thinwire.graphs import Shard

# What comes after the last neighbour is read too.
PADDED = (aggr.LSTMAggregation, aggr.GRUAggregation, aggr.LCMAggregation)
ORDERED = (*PADDED, aggr.MLPAggregation, aggr.PatchTransformerAggregation)
# Ids as two numbers that float32 has exactly.
DIGITS = 24


def is_ordered(conv: nn.Module) -> bool:
    """Whether the order of a node's neighbours matters to this layer, or may matter."""
    own = isinstance(conv, MessagePassing) and type(conv).aggregate is not MessagePassing.aggregate
    return own or any(isinstance(module, ORDERED) for module in conv.modules())


def order(shard: Shard, halo: Halo) -> Tensor:
    """The shard's edges by target, then by the source's number in the whole graph. Asks the owners."""
    ids = shard.original_ids
    fetched = halo.ask(torch.stack((ids >> DIGITS, ids & (2**DIGITS - 1)), dim=1).float()).long()
    sources = torch.cat((ids, (fetched[:, 0] << DIGITS) + fetched[:, 1]))[shard.indices.long()]
    by_source = torch.argsort(sources, stable=True)
    rows = torch.repeat_interleave(torch.arange(shard.num_owned, device=ids.device), shard.indptr.diff())
    return by_source[torch.argsort(rows[by_source], stable=True)]


@contextmanager
def padded(conv: nn.Module, most: int | None) -> Iterator[None]:
    """Sequences in here are this long."""
    found = [module for module in conv.modules() if isinstance(module, PADDED)] if most else []
    before = [vars(module).get("forward") for module in found]
    for module in found:
        module.forward = partial(module.forward, max_num_elements=most)
    try:
        yield
    finally:
        for module, own in zip(found, before, strict=True):
            if own is None:
                del module.forward
            else:
                module.forward = own
